"""Looking instead of sleeping, across fork."""

import os

import pytest

from .harness import both

ROUNDS = 3000


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nobody looks")
def test_a_fork_beside_a_spinner():
    """The thread that looked does not exist in the child, and takes nobody's turn there."""
    outcome = both(
        "spinning", "fork_beside_a_spinner", ROUNDS, env={"SDP_RECV_POLL": "1000000"}
    )
    assert outcome.seen == {"child": 0, "peer": 0}, outcome.describe()
    assert outcome.report.raw["waits"]["spun"] > ROUNDS // 2, outcome.describe()
