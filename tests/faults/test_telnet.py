"""telnet and xinetd, with which one tries whether SDP works, keep their lanes: SO_OOBINLINE and IPV6_ADDRFORM."""

import pytest

from .harness import both, on_lanes


@pytest.mark.parametrize("peeks", ["", "peek"])
@pytest.mark.parametrize("size", [700, 1000, 3000, 8000])
def test_the_mark(size, peeks):
    """Bytes of the ring come before it, a bell does not hide it, no call passes it."""
    outcome = both("telnet", "mark", str(size), peeks)
    # All three: before the mark, at it, and behind it.
    assert {tuple(step[:2]) for step in outcome.seen["steps"]} >= {(True, 0), (True, 1)}, outcome.describe()
    assert outcome.seen["fine"] and outcome.report.sdp_bytes > 6000, outcome.describe()
    left = {reason for reason, times in outcome.report.raw["demotions"].items() if times}
    assert left == {"peer-switched", "urgent-data"}, outcome.describe()


def test_the_option_alone():
    on_lanes(both("telnet", "inline"))


@pytest.mark.parametrize("when", ["young", "attached"])
def test_a_mapped_socket(when):
    outcome = both("telnet", "form", when)
    assert outcome.seen["names"] == ["127.0.0.1", "127.0.0.1"], outcome.describe()
    assert outcome.report.sdp_bytes > 300_000 and not any(outcome.report.raw["reasons"].values()), outcome.describe()
