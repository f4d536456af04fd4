"""The first message on a lane: whoever sleeps is woken, and no bell goes where nobody needs one."""

import pytest

from .harness import EAGER, both, scenario

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
