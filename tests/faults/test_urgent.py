"""Urgent data never becomes ordinary data, also where its sender cannot leave the lane at that moment."""

import pytest

from .harness import EAGER, scenario


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("how", ["blocking", "nonblocking", "dontwait"])
def test_refused(how, env):
    """TCP takes the byte at once; here the call waits, or says that it would, until the reader lets the lane go."""
    plain = scenario("urgent", "refused", how, "tcp", sdp=False).seen
    assert plain == {"first": [1], "told": 1, "child": 0}, plain
    outcome = scenario("urgent", "refused", how, "lane", env=env)
    waits = {"first": [] if how == "blocking" else ["EAGAIN"], "told": 1, "child": 0}
    assert outcome.seen == waits and outcome.report.sdp_bytes > 0, outcome.describe()
    assert outcome.report.count("demotions", "urgent-data") > 0, outcome.describe()


@pytest.mark.parametrize("how", ["blocking", "nonblocking", "dontwait"])
def test_granted(how):
    outcome = scenario("urgent", "refused", how, "tcp", env=EAGER)
    assert outcome.seen == {"first": [1], "told": 1, "child": 0}, outcome.describe()
