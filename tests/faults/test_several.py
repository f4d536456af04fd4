"""Several processes that really use one end of a connection do so on the SDP lane."""

import pytest

from .harness import EAGER, both, on_lanes, scenario

FLIPS = {**EAGER, "SDP_TEST_LANE_FLIP": "7"}


def stays(outcome):
    """Nobody left the lane, for being several or for whatever else; payload of both directions went over it."""
    on_lanes(outcome)
    assert outcome.report.sdp_bytes > outcome.report.tcp_bytes, outcome.describe()


READERS = ["recv", "read", "readv", "recvmsg", "waitall", "peek", "poll", "select"]
WRITERS = ["write", "writev", "sendmmsg", "sendfile", "mixed"]


@pytest.mark.parametrize(
    ("way", "pace"), [*((way, "stream") for way in READERS), *((way, "asked") for way in ("recv", "poll", "waitall", "peek"))]
)
def test_readers(way, pace):
    outcome = both("several", "readers", way, pace)
    assert outcome.seen["missing"] == outcome.seen["twice"] == 0, outcome.describe()
    stays(outcome)


@pytest.mark.parametrize("way", ["call", "vector"])
@pytest.mark.parametrize("seed", range(3))
def test_writers(seed, way):
    outcome = both("several", "writers", seed, way)
    assert outcome.seen["fine"], outcome.describe()
    stays(outcome)


@pytest.mark.parametrize(("way", "most"), [("mixed", 4000), *((way, 40_000) for way in WRITERS)])
def test_writers_by_other_calls(way, most):
    """A call that fits into the room there is arrives in one piece, by whatever name it was made."""
    outcome = both("several", "writers", 5, way, most)
    assert outcome.seen["fine"], outcome.describe()
    stays(outcome)


@pytest.mark.parametrize("way", ["recv", "poll"])
def test_while_one_is_busy(way):
    stays(both("several", "while_one_is_busy", way))


@pytest.mark.parametrize("sleepers", [1, 6])
@pytest.mark.parametrize("way", ["recv", "poll"])
def test_asleep_before_the_fork(way, sleepers):
    outcome = both("several", "asleep_before_the_fork", way, sleepers)
    if way == "poll":
        stays(outcome)
    else:
        # Who forked was in the kernel with it.
        assert outcome.report.count("demotions", "shared") > 0, outcome.describe()


def test_one_shuts_down():
    outcome = both("several", "one_shuts_down")
    assert outcome.seen["send"] == "EPIPE", outcome.describe()
    stays(outcome)


@pytest.mark.parametrize("when", ["between", "later"])
def test_one_is_killed(when):
    stays(both("several", "one_is_killed", when))


def test_bulk_both_ways():
    outcome = both("several", "bulk_both_ways")
    assert outcome.seen["missing"] == 0, outcome.describe()
    stays(outcome)


def test_one_polls_a_set():
    """The one case that is the kernel lane's: what a set is armed for cannot be shared."""
    outcome = both("several", "one_polls_a_set")
    assert outcome.report.count("demotions", "shared") > 0, outcome.describe()


@pytest.mark.parametrize(
    "words",
    [
        ("readers", "recv", "stream"),
        ("readers", "poll", "asked"),
        ("readers", "select", "stream"),
        ("readers", "peek", "asked"),
        ("writers", "9", "call"),
        ("writers", "9", "mixed", "40000"),
        ("while_one_is_busy", "recv"),
        ("bulk_both_ways",),
    ],
    ids=" ".join,
)
def test_with_lanes_that_flip(words):
    plain = scenario("several", *words, sdp=False)
    outcome = scenario("several", *words, env=FLIPS)
    assert outcome.seen == plain.seen, outcome.describe()
