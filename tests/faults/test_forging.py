"""Forged cursors, headers, logs, arm words: the victim keeps its senses and its other connections."""

import os
import signal
import sys

import pytest

from .harness import PROGRAMS, scenario

sys.path.insert(0, str(PROGRAMS))

from forging import FORGERIES, USES  # noqa: E402

SEEDS = int(os.environ.get("FAULT_SEEDS", "6")) // 6 or 1
FINE = {"peer": -signal.SIGKILL, "innocent": 0, "victim": 0}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", FORGERIES)
def test_forged(kind, use, seed):
    outcome = scenario("forging", "forge", kind, use, seed)
    assert outcome.seen["codes"] == FINE, outcome.describe()
    if kind in ("tail", "records") and use == "blocking":
        # The cause is visible.
        named = outcome.report.raw["reasons"].keys() | outcome.report.raw["demotions"].keys()
        assert "protocol-violation" in named, outcome.describe()


@pytest.mark.parametrize("holder", [1, 2])
def test_orphaned_gate(holder):
    seen = scenario("forging", "orphaned_gate", holder).seen
    assert seen["got"] == [50_000, "EOF", True] and seen["late"] and seen["soon"], seen
