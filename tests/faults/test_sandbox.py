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


@pytest.mark.parametrize("calls", ["block", "poll", "epoll"])
def test_a_filter_for_one_thread_with_lanes_that_flip(calls):
    outcome = run([compiled("tsync.c"), calls, 3, "one"], env={**EAGER, "SDP_TEST_LANE_FLIP": "7"})
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
    assert outcome.report.count("demotions", "test-flip") > 0, outcome.describe()


@pytest.mark.parametrize("threads", [3, 12])
@pytest.mark.parametrize("calls", ["block", "poll", "epoll"])
def test_a_filter_for_one_thread(calls, threads):
    """The others have none, and go on; but the library is the process's, so all of its connections leave their lanes."""
    argv = [compiled("tsync.c"), calls, threads, "one"]
    plain = run(argv, sdp=False)
    assert plain.code == 0 and plain.seen == {"fine": True}, plain.describe()
    outcome = run(argv, env=EAGER)
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
    assert outcome.report.count("demotions", "sandbox") >= threads, outcome.describe()
    assert outcome.report.count("connections", "sdp") == 2 * threads, outcome.describe()
    # Before that each had been on its lanes for many calls.
    assert outcome.report.sdp_bytes > threads * 4 * 100 * 20, outcome.describe()


def test_a_filter_for_one_thread_before_any_lane():
    """Connections that had earned nothing stay where they are."""
    outcome = run([compiled("tsync.c"), "poll", 3, "first"])
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
    assert outcome.report.count("reasons", "sandbox") > 0, outcome.describe()
