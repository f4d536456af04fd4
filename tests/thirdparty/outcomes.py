"""pytest plugin: records each outcome as it happens, as `runner.py` does for unittest's modules.

`RECORD` is the record's path; without it names are printed and nothing runs. `ONLY`: names, a line
each.
"""

import os


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
        only = os.environ["ONLY"].split("\n")
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
