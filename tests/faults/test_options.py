"""Socket options and flags: the same as over TCP."""

import pytest

from .harness import AT_THE_END, WARMED, both, on_lanes

CASES = [
    # In tenths of a second.
    pytest.param("timeouts", marks=pytest.mark.alone),
    pytest.param("send_timeout", marks=pytest.mark.alone),
    "truncation",
    "low_watermark",
    "low_watermark_with_unread",
    "linger_zero read",
    "linger_zero unread",
    "linger_set_by listener",
    "linger_set_by child",
    "urgent inline",
    "urgent outofband",
    "urgent_from_us",
    "half_close",
    "queue_sizes",
    "quiet_switch poll",
    "quiet_switch select",
    "quiet_switch epoll",
    "quiet_switch epoll-et",
]
# What ends a lane, by how the names of cases begin.
LEFT = {"low_watermark": "low-watermark", "quiet_switch": "low-watermark", "urgent": "urgent-data"}


@pytest.mark.parametrize("case", CASES)
def test_options(case):
    outcome = both("options", *case.split())
    named = [reason for begin, reason in LEFT.items() if case.startswith(begin)]
    for reason in named:
        assert outcome.report.count("demotions", reason) > 0, outcome.describe()
    if case == "half_close":
        # A sender that has no room looks at the carrier, finds its peer's end there, and goes on over TCP.
        assert outcome.report.count("bytes", "sdp_sent") > 100_000, outcome.describe()
        assert not any(outcome.report.raw["reasons"].values()), outcome.describe()
        return
    # What these send after they have left goes over TCP: some kilobytes.
    on_lanes(outcome, young=WARMED + 8192 * len(named), but=AT_THE_END | set(named))
