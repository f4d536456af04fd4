"""Looking instead of sleeping: across fork, and where the kernel has the answer."""

import os
import select

import pytest

from .harness import EAGER, both

# How often somebody looked or slept is counted.
pytestmark = pytest.mark.alone

ROUNDS = 3000


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nobody looks")
def test_a_fork_beside_a_spinner():
    """The thread that looked does not exist in the child, and takes nobody's turn there."""
    outcome = both(
        "spinning", "fork_beside_a_spinner", ROUNDS, env={"SDP_RECV_POLL": "1000000"}
    )
    assert outcome.seen == {"child": 0, "peer": 0}, outcome.describe()
    assert outcome.report.raw["waits"]["spun"] > ROUNDS // 2, outcome.describe()


@pytest.mark.parametrize("how", ["epoll", "poll", "select"])
def test_who_asks_to_write_neither_looks_nor_sleeps(how):
    """The kernel has the answer: looking at rings before would be in vain each time, and teach the wrong thing."""
    outcome = both("spinning", "asks_to_write", ROUNDS, how, env=EAGER)
    seen = {"writable": ROUNDS, "answered": [select.EPOLLIN], "peer": 0}
    assert outcome.seen == seen, outcome.describe()
    assert outcome.report.raw["waits"]["slept"] < ROUNDS // 2, outcome.describe()
