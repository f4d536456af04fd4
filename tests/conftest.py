"""Shared set-up of the end-to-end tests: one ladder per session, results recorded for xtask."""

import os
import signal
from pathlib import Path

import pytest

from support.check import Ladder
from support.foreign import ROTATION
from support.procs import become_subreaper

RECORD = os.environ.get("SDP_TEST_RESULTS")
TARGET = os.environ.get("SDP_TEST_TARGET", Path(__file__).resolve().parent.parent / "target")


def pytest_report_header():
    """Names what chooses the parts that take turns."""
    return f"rotation seed {ROTATION} (SDP_TEST_ROTATION)"


def pytest_configure(config):
    """Registers the marker of the tests that `--quick` runs; a shell's background job begins as one of its foreground."""
    config.addinivalue_line("markers", "quick: part of `cargo xtask test --quick`")
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            # Programs that wait for the signal would do so for ever.
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def ladder():
    """What all tests of the session share."""
    become_subreaper()
    shared = Ladder(TARGET)
    yield shared
    shared.close()


def pytest_runtest_logreport(report):
    """Appends one line per test for xtask: outcome, name, reason."""
    if not RECORD or (report.when != "call" and report.passed):
        return
    reason = ""
    if report.skipped:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    line = "\t".join([report.outcome, report.nodeid, reason.replace("\n", " ").replace("\t", " ")])
    with open(RECORD, "a", encoding="utf-8") as record:
        record.write(line + "\n")
