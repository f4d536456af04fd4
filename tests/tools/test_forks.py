"""Counters of fork children, which begin in the page of the process that forked them: not a byte, an end or a
process is lost or counted twice, however a child ends and whenever it got its own page."""

import itertools
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from faults.harness import EAGER, run  # noqa: E402
from support.stage import python  # noqa: E402

pytestmark = pytest.mark.quick

FORKS = Path(__file__).with_name("forks.py")
ENDS = ["exit", "kill", "execute", "fail", "heir", "two"] + (["setuid"] if os.geteuid() == 0 else [])
# Fewer calls than a page of its own is worth, about as many, and more.
MESSAGES = [1, 7, 8, 9, 100]


@pytest.mark.parametrize("env", [{}, EAGER], ids=["young", "eager"])
def test_children_are_counted(env):
    cases = [f"{n}:{end}" for n, end in itertools.product(MESSAGES, ENDS)]
    outcome = run([python(), FORKS, *cases], env=env)
    assert outcome.code == 0, outcome.describe()
    report, seen = outcome.report, outcome.seen
    assert report.count("connections", "seen") == seen["ends"], outcome.describe()
    assert report.count("connections", "sdp") > 0, outcome.describe()
    counted = sum(report.raw["reasons"].values())
    assert counted == report.count("connections", "tcp"), outcome.describe()
    for way in ("sent", "received"):
        moved = report.count("bytes", f"sdp_{way}") + report.count("bytes", f"tcp_{way}")
        assert moved == seen["moved"], outcome.describe()
    # An image that opens no connection is no process of ours.
    executed = sum("execute" in case for case in cases)
    assert seen["processes"] <= report.raw["processes"] <= seen["processes"] + executed, outcome.describe()
