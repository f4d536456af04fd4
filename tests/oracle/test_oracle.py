"""The byte-stream oracle over SDP, and with the lanes changed at random: every byte, once, in order."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from faults.harness import EAGER, run  # noqa: E402

pytestmark = pytest.mark.integrity

STREAM = Path(__file__).resolve().parent / "stream.py"
FIRST = int(os.environ.get("ORACLE_FIRST", "1"))
SEEDS = int(os.environ.get("ORACLE_SEEDS", "500"))
TOTAL_BYTES = int(os.environ.get("ORACLE_BYTES", "1000000"))
LIMIT_S = 180
# Seeds that one process plays, one after the other, and how many such processes make a test: two at a time.
ROW = 25
ROWS = 4
# A ring that every stream of some length goes round several times, and fills.
SMALL_RING = 65536


def is_eager(first):
    """Whether a row's connections get their lanes at once; others earn them as programs do."""
    return first // ROW % 2 == 1


def ring(first):
    """The size of a row's rings: of every other two the least there is."""
    return {"SDP_RING_BYTES": str(SMALL_RING)} if first // ROW % 4 < 2 else {}


def portions():
    """The seeds in portions: a list of rows (first, last) for each test."""
    last = FIRST + SEEDS - 1
    rows = [(at, min(at + ROW - 1, last)) for at in range(FIRST, last + 1, ROW)]
    return [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]


def name_of(rows):
    """Shown in the test's name."""
    return f"{rows[0][0]}-{rows[-1][1]}"


def play(row, env):
    """The seeds of one process; its report."""
    seeds = f"{row[0]}-{row[1]}"
    outcome = run([sys.executable, STREAM, seeds, TOTAL_BYTES], env=env, limit_s=LIMIT_S)
    assert outcome.code == 0, f"seeds {seeds}, {env}: {outcome.describe()}"
    return outcome.report


def play_all(rows, env):
    """Plays rows two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda row: play(row, {**env(row[0]), **ring(row[0])}), rows))


@pytest.mark.parametrize("rows", portions(), ids=name_of)
def test_stream(rows):
    # Of the connections that earn their lanes many are over before they are there, and now and then, where the machine
    # is slow, all of a row.
    reports = play_all(rows, lambda first: EAGER if is_eager(first) else {})
    told = [report.describe() for report in reports]
    eager = [is_eager(first) for first, _ in rows]
    assert all(report.sdp_bytes > 0 for report, at_once in zip(reports, eager) if at_once), told
    if TOTAL_BYTES >= 4 * SMALL_RING:
        for (first, last), report in zip(rows, reports):
            if is_eager(first) and ring(first) and last - first == ROW - 1:
                # More than all rings hold at a time: some went round.
                assert report.sdp_bytes > report.seen * SMALL_RING, report.describe()
    earned = [report.sdp_bytes for report, at_once in zip(reports, eager) if not at_once]
    assert not earned or sum(earned) > 0, told


@pytest.mark.parametrize("rows", portions(), ids=name_of)
def test_stream_with_flips(rows):
    reports = play_all(rows, lambda first: {**EAGER, "SDP_TEST_LANE_FLIP": str(first)})
    assert all(report.sdp_bytes > 0 for report in reports), [r.describe() for r in reports]
    flips = sum(report.count("demotions", "test-flip") for report in reports)
    assert flips > 4 * len(rows), [r.describe() for r in reports]
