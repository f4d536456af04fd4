"""Others that hold a connection while it is young: whoever lets go of it costs it nothing, whoever keeps it a lane."""

import pytest

from .harness import EAGER, both, on_lanes, scenario

FLIPS = {**EAGER, "SDP_TEST_LANE_FLIP": "7"}

# Those that live on without it, by fork and by vfork.
ALIVE = ["close", "closefrom", "close_range", "dup2", "exec", "exec-close_range", "posix_spawn", "popen"]
# Those that end: reaped or not.
ENDED = [("exit", "unreaped"), ("exit", "reaped"), ("kill", "unreaped"), ("kill", "reaped")]
KEPT = ["keep", "keep-other", "exec-keep"]
LET_GO = [*((how, "alive") for how in ALIVE), *ENDED]


@pytest.mark.parametrize(("how", "when"), LET_GO)
def test_let_go(how, when):
    """The connection of who is left earns its lanes, as if nobody else had ever had it."""
    outcome = both("young", "let_go", how, when)
    assert outcome.seen == {"fine": True, "holder": -9 if how == "kill" else 0, "end": [0, "EOF", True], "peer": 0}
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()
    for direction in ("sent", "received"):
        assert outcome.report.share(direction) > 0.9, outcome.describe()
    on_lanes(outcome)


@pytest.mark.parametrize("how", KEPT)
def test_kept(how):
    """Who still has it open might use it: TCP, for that reason, and every byte is right."""
    outcome = both("young", "kept", how, "end", is_accelerated=False)
    assert outcome.seen["fine"] and outcome.seen["end"] == [0, "EOF", True], outcome.describe()
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.raw["reasons"]["not-sole"] == 1, outcome.describe()
    assert outcome.report.count("connections", "tcp") == 2, outcome.describe()


@pytest.mark.parametrize("how", KEPT)
def test_kept_for_a_while(how):
    """It comes onto its lanes soon after he has let go: of what it does three times after that two thirds are over SDP, or nearly."""
    outcome = both("young", "kept", how, "later")
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()
    for direction in ("sent", "received"):
        sdp, tcp, _ = outcome.report.volume(direction)
        assert sdp > 0.4 * (sdp + tcp), outcome.describe()


@pytest.mark.parametrize(("how", "when"), [("close", "alive"), ("exec", "alive"), ("kill", "unreaped")])
def test_with_lanes_that_flip(how, when):
    plain = scenario("young", "let_go", how, when, sdp=False)
    outcome = scenario("young", "let_go", how, when, env=FLIPS)
    assert outcome.seen == plain.seen, outcome.describe()
    assert outcome.report.count("demotions", "test-flip") > 0, outcome.describe()
