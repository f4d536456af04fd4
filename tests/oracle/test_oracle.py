"""The byte-stream oracle over SDP, and with the lanes changed at random: every byte, once, in order."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from faults.harness import EAGER, run  # noqa: E402

STREAM = Path(__file__).resolve().parent / "stream.py"
SEEDS = range(1, 1 + int(os.environ.get("ORACLE_SEEDS", "40")))
TOTAL_BYTES = int(os.environ.get("ORACLE_BYTES", "2000000"))
LIMIT_S = 90
# Seeds in one test: enough that some must have flipped.
BATCH = 10


def play(seed, env):
    """One seed; its report."""
    outcome = run([sys.executable, STREAM, seed, TOTAL_BYTES], env=env, limit_s=LIMIT_S)
    assert outcome.code == 0, f"seed {seed}: {outcome.describe()}"
    return outcome.report


def batches():
    """The seeds in portions, each a test of its own."""
    seeds = list(SEEDS)
    return [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]


def play_all(seeds, env):
    """Plays seeds two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda seed: play(seed, env(seed)), seeds))


@pytest.mark.parametrize("seeds", batches(), ids=lambda s: f"{s[0]}-{s[-1]}")
def test_stream(seeds):
    # Every other seed earns its lane as programs do; of those, some are over before it is there.
    reports = play_all(seeds, lambda seed: EAGER if seed % 2 else {})
    assert sum(report.sdp_bytes > 0 for report in reports) > 1


@pytest.mark.parametrize("seeds", batches(), ids=lambda s: f"{s[0]}-{s[-1]}")
def test_stream_with_flips(seeds):
    reports = play_all(seeds, lambda seed: {**EAGER, "SDP_TEST_LANE_FLIP": str(seed)})
    assert sum(report.sdp_bytes for report in reports) > 0
    flips = sum(report.count("demotions", "test-flip") for report in reports)
    assert flips > len(seeds) // 2, [report.describe() for report in reports]
