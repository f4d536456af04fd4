"""A sandbox is entered while other threads of the process wait or work: they go on, with the kernel's calls alone."""

import pytest

from .harness import EAGER, both, compiled, run

# Long enough for the limited sleeps of a process with memory to give back to end.
SILENCE_S = 2.5
# Moments at which a filter comes.
ROUNDS = 5


@pytest.mark.parametrize("how", ["recv", "poll", "epoll", "send"])
def test_waiting_beside_a_sandbox(how):
    outcome = both("sandbox", "waiting", how, SILENCE_S, env={"SDP_GIVE_BACK": "1"})
    seen = outcome.seen
    assert seen["got"] == ["sent" if how == "send" else "x"], outcome.describe()
    assert not seen["busy"] and seen["child"] == 0, outcome.describe()
    assert outcome.report.count("demotions", "sandbox") > 0, outcome.describe()


@pytest.mark.parametrize("threads", [3, 12])
@pytest.mark.parametrize("calls", ["block", "poll", "epoll"])
def test_a_filter_for_all_threads(calls, threads):
    """It kills for whatever the program does not ask for itself, and comes at any moment of the other threads' calls."""
    for _ in range(ROUNDS):
        outcome = run([compiled("tsync.c"), calls, threads], env=EAGER)
        assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
        assert outcome.report.count("demotions", "sandbox") > 0, outcome.describe()
