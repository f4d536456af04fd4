"""Runs tests of an installed package and records each outcome as it happens.

usage: runner.py MODULE RECORD [NAME…], as `tests/cpython/runner.py`; MODULE is a full name. The same for
packages whose tests need pytest: `-m pytest -p runner`, with the record's path in `RECORD`.
"""

import importlib.util
import os
import sys
import unittest
from pathlib import Path

CPYTHON = Path(__file__).resolve().parent.parent / "cpython" / "runner.py"


def note(line):
    """One line, on disk before anything else happens."""
    with open(os.environ["RECORD"], "a", encoding="utf-8") as record:
        record.write(line + "\n")


def pytest_collection_modifyitems(items):
    """Prints the names instead of running anything if there is no record; keeps those of `ONLY`."""
    if "RECORD" not in os.environ:
        print(*(item.nodeid for item in items), sep="\n")
        items.clear()
    if "ONLY" in os.environ:
        only = os.environ["ONLY"].split(",")
        items[:] = [item for item in items if item.nodeid in only]


def pytest_runtest_logstart(nodeid):
    """A test begins."""
    note(f"start {nodeid}")


def pytest_runtest_logreport(report):
    """One phase of a test has ended."""
    if report.failed:
        note(f"{'fail' if report.when == 'call' else 'error'} {report.nodeid}")
    elif hasattr(report, "wasxfail"):
        note(f"{'xfail' if report.skipped else 'xpass'} {report.nodeid}")
    elif report.skipped:
        note(f"skip {report.nodeid}")
    elif report.when == "call":
        note(f"ok {report.nodeid}")


def pytest_sessionfinish():
    """The end was reached."""
    if "RECORD" in os.environ:
        note("end")


def main():
    """Runs one module of unittest's kind."""
    spec = importlib.util.spec_from_file_location("cpython_runner", CPYTHON)
    cpython = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cpython)
    recorder = cpython.Recorder

    module, record, *names = sys.argv[1:]
    if module.startswith("gevent."):
        # As each of these modules does first when it is run as a program.
        from gevent import monkey

        monkey.patch_all()
    suite = unittest.defaultTestLoader.loadTestsFromName(module)
    suite = unittest.TestSuite(cpython.chosen(suite, set(names)))
    if record == "-":
        print(*(test.id() for test in suite), sep="\n")
        return
    recorder.record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    unittest.TextTestRunner(resultclass=recorder, verbosity=2, stream=sys.stdout).run(suite)
    os.write(recorder.record, b"end\n")


if __name__ == "__main__":
    main()
