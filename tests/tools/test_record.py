"""What `tests/conftest.py` records of each test for the ladder, and which tests it leaves out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

TESTS = Path(__file__).resolve().parent.parent
CASES = """
import os
import pytest
from support.report import check_bytes


def test_passes():
    pass


def test_fails():
    assert False


def test_is_skipped():
    pytest.skip("no reason")


@pytest.mark.integrity
def test_is_about_bytes():
    assert False


def test_finds_wrong_bytes():
    check_bytes(False, "one is missing")


@pytest.fixture
def broken():
    yield
    assert False


def test_ends_badly(broken):
    pass


def test_dies():
    os._exit(3)
"""


PARTED = """
import pytest


@pytest.mark.parametrize("placement", ["plain", "both"])
@pytest.mark.parametrize("what", range(5))
def test_compared(placement, what):
    pass


@pytest.mark.parametrize("what", [*range(7), pytest.param("times", marks=pytest.mark.alone)])
def test_other(what):
    pass
"""


def recorded(directory, *options, text=CASES, env=None):
    """The lines of a record of pytest's, split."""
    cases = directory / "test_cases.py"
    cases.write_text(text)
    record = directory / "record"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", *options, cases],
        env={**os.environ, "PYTHONPATH": str(TESTS), "SDP_TEST_RESULTS": str(record), **(env or {})},
        cwd=directory,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert record.exists(), done.stdout.decode()
    lines = [line.split("\t") for line in record.read_text().splitlines()]
    record.unlink()
    return lines


def test_a_line_for_each_test(tmp_path):
    """Outcome, name, two times, mark and reason; a failure of a test's end is one of the test."""
    lines = recorded(tmp_path, "-k", "not dies")
    begun = [line[1] for line in lines if line[0] == "begun"]
    ended = [line for line in lines if line[0] != "begun"]
    assert begun == [line[1] for line in ended]
    assert [(line[0], line[1].rpartition("::")[2], line[4], line[5]) for line in ended] == [
        ("passed", "test_passes", "", ""),
        ("failed", "test_fails", "", ""),
        ("skipped", "test_is_skipped", "", "Skipped: no reason"),
        ("failed", "test_is_about_bytes", "integrity", ""),
        ("failed", "test_finds_wrong_bytes", "integrity", ""),
        ("failed", "test_ends_badly", "", ""),
    ]
    assert all(float(line[2]) >= 0 and float(line[3]) >= 0 for line in ended)


def test_the_one_that_ended_the_session_is_named(tmp_path):
    lines = recorded(tmp_path, "-k", "dies")
    assert [(line[0], line[1].rpartition("::")[2]) for line in lines] == [("begun", "test_dies")]


def test_parts_are_the_whole(tmp_path):
    """Each test is in one part; what is compared is in one with what it is compared with."""
    names = {}
    for part in ("1/2", "2/2", "alone"):
        lines = recorded(tmp_path, text=PARTED, env={"SDP_TEST_PART": part})
        names[part] = [line[1].rpartition("::")[2] for line in lines if line[0] == "passed"]
    assert names["alone"] == ["test_other[times]"]
    together = names["1/2"] + names["2/2"]
    assert len(together) == len(set(together)) == 2 * 5 + 7
    assert all(len(names[part]) > 5 for part in ("1/2", "2/2"))
    for part in ("1/2", "2/2"):
        assert all(name.replace("both", "plain") in names[part] for name in names[part])


def test_a_draw_is_of_so_many_and_the_same_again(tmp_path):
    drawn = [recorded(tmp_path, text=PARTED, env={"SDP_TEST_DRAW": f"4 {seed}"}) for seed in (1, 1, 2)]
    first, again, other = ([line[1] for line in lines if line[0] == "passed"] for lines in drawn)
    assert len(first) == len(other) == 4
    assert first == again != other
