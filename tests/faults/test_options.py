"""Socket options and flags: the same as over TCP."""

import pytest

from .harness import both

CASES = [
    "timeouts",
    "send_timeout",
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


@pytest.mark.parametrize("case", CASES)
def test_options(case):
    outcome = both("options", *case.split())
    if case.startswith("low_watermark"):
        assert outcome.report.count("demotions", "low-watermark") > 0, outcome.describe()
    if case.startswith("urgent"):
        assert outcome.report.count("demotions", "urgent-data") > 0, outcome.describe()
