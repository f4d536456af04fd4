"""Runs tests of an installed package and records each outcome as it happens.

usage: runner.py MODULE RECORD [NAME…], as `tests/cpython/runner.py`; MODULE is a full name.
"""

import importlib.util
import os
import sys
import unittest
from pathlib import Path

CPYTHON = Path(__file__).resolve().parent.parent / "cpython" / "runner.py"


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
