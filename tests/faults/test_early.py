"""The first message on a lane: whoever sleeps is woken, and no bell goes where nobody needs one."""

import pytest

from .harness import EAGER, both, compiled, on_lanes, run, scenario

WAYS = ["recv", "poll", "select", "level"]


@pytest.mark.parametrize("way", [*WAYS, "nested"])
def test_asleep_before_there_were_lanes(way):
    both("early", "woken", way, env=EAGER, limit_s=60)


@pytest.mark.parametrize("way", WAYS)
def test_round_trips_ring_no_carrier(way):
    """The kernels have sent what the library gave them as payload, and not a byte more."""
    outcome = scenario("early", "trips", way, env=EAGER)
    report = outcome.report
    assert report.count("connections", "sdp") == 2, outcome.describe()
    assert outcome.seen["carrier"] == report.count("bytes", "tcp_sent"), outcome.describe()


def test_threads_that_meet_together_make_one_bell():
    """A peer rings the first bell that it is told of; who sleeps by a second one sleeps for ever.

    A thread that is held anywhere in its first meeting while the others have theirs finds the bell that they made, or
    makes it for all: at both ends there are two bells in all, the own one, of which the page's file is kept, and the other end's.
    """
    threads, free, held, rounds = 12, 10, 50, 20
    argv = [compiled("bells.c"), threads, free, held]
    seen = {"trips": (free + held) * threads * rounds}
    plain = run(argv, sdp=False)
    assert plain.seen == {**seen, "bells": {"0 0 0, 0 0 0": free + held}}, plain.describe()
    outcome = run(argv, env=EAGER, limit_s=60)
    assert outcome.seen == {**seen, "bells": {"2 2 1, 2 2 1": free + held}}, outcome.describe()
    on_lanes(outcome, young=rounds * 200 // 2)
    assert outcome.report.count("connections", "sdp") == 2 * threads * (free + held), outcome.describe()
