"""Monotonic clocks that jump in a process's life, by days and years, ahead and back: waits are as over plain TCP.

The kernel's own clocks never do that; a process that enters a time namespace sees it.
"""

import os
import sys

import pytest

from .harness import EAGER, PROGRAMS, both, run

FLIPS = {**EAGER, "SDP_TEST_LANE_FLIP": "9"}
PROBE = f"import sys; sys.path.insert(0, {str(PROGRAMS)!r}); import clocks; clocks.jump(86_400)"


def may_jump():
    return os.geteuid() == 0 and run([sys.executable, "-c", PROBE], sdp=False).code == 0


pytestmark = pytest.mark.skipif(not may_jump(), reason="needs time namespaces")


@pytest.mark.parametrize("env", [{}, FLIPS], ids=["kept", "flipped"])
def test_jumps(env):
    outcome = both("clocks", "jumps", env=env, limit_s=60)
    for (*rows, is_end, is_fine), code in outcome.seen.values():
        assert all(all(fine) for _, _, *fine in rows) and is_end and is_fine and code == 0, outcome.describe()
        # There and back again.
        moved = [row[:2] for row in rows]
        assert moved.count([True, False]) == moved.count([False, True]) == 3, outcome.describe()
    # 40 messages each way of each, and the warm-up.
    assert outcome.report.count("bytes", "sdp_received") > 5 * 40_000, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
def test_while_young(env):
    outcome = both("clocks", "while_young", env=env)
    assert outcome.seen["fine"], outcome.describe()
    # Seven connections with 120 messages of a kilobyte each; all of them came onto their lanes.
    assert outcome.report.count("connections", "sdp") == 14, outcome.describe()


@pytest.mark.parametrize("when", [(9, 0), (0, 9)], ids=["back", "ahead"])
@pytest.mark.parametrize("how", ["poll", "level", "edge"])
def test_room(how, when):
    outcome = both("clocks", "room", how, *when, limit_s=60)
    assert outcome.seen == {"seen": [["EAGAIN", True, 1], ["EAGAIN", True, True]]}, outcome.describe()
