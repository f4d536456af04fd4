"""A sandbox is entered while another thread of the process waits: the wait goes on, as the kernel's."""

import pytest

from .harness import both

# Long enough for the limited sleeps of a process with memory to give back to end.
SILENCE_S = 2.5


@pytest.mark.parametrize("how", ["recv", "poll", "epoll", "send"])
def test_waiting_beside_a_sandbox(how):
    outcome = both("sandbox", "waiting", how, SILENCE_S, env={"SDP_GIVE_BACK": "1"})
    seen = outcome.seen
    assert seen["got"] == ["sent" if how == "send" else "x"], outcome.describe()
    assert not seen["busy"] and seen["child"] == 0, outcome.describe()
    assert outcome.report.count("demotions", "sandbox") > 0, outcome.describe()
