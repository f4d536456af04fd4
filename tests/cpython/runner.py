"""Runs tests of CPython's own suite and records each outcome as it happens.

usage: runner.py MODULE RECORD [NAME…]: with names, only those tests; with `-` as record the names are
printed and nothing runs.

Each test is announced before it begins, so that a crash or a hang is charged to it. Lines of the
record: `start ID`, then `ok`, `fail`, `error`, `skip`, `xfail` or `xpass` with the ID, and `end`.
"""

import faulthandler
import os
import sys
import unittest

from test import support
from test.support import os_helper

# Seconds after which one test has hung; the process then ends with all stacks shown.
TEST_LIMIT_S = 90

# No test may leave this machine, need a display or fill a disk. test_socketserver asks for the
# network as a whole, though it uses nothing but loopback.
RESOURCES = ["cpu", "subprocess", "decimal", "tzdata"]
NEED_NETWORK = ["test_socketserver"]


class Recorder(unittest.TextTestResult):
    """Appends outcomes to a file."""

    record = None

    def note(self, what, test):
        """One line, on disk before anything else happens."""
        os.write(self.record, f"{what} {test.id()}\n".encode())

    def startTest(self, test):
        faulthandler.dump_traceback_later(TEST_LIMIT_S, exit=True)
        self.note("start", test)
        super().startTest(test)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note("fail", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.note("error", test)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.note("fail", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note("skip", test)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.note("xfail", test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note("xpass", test)


# Tests of address families that end at the hypervisor, not at this machine: whether one hangs
# depends on the machine, and no lane is involved.
FOREIGN = ["VSOCK"]


def chosen(suite, names):
    """The tests of a suite, in its order: those with one of the names, or all if there is none."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from chosen(item, names)
        elif (not names or item.id() in names) and not any(word in item.id() for word in FOREIGN):
            yield item


def main():
    """Runs one module."""
    module, record, *names = sys.argv[1:]
    support.use_resources = RESOURCES + (["network"] if module in NEED_NETWORK else [])
    support.verbose = 1
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{module}")
    suite = unittest.TestSuite(chosen(suite, set(names)))
    if record == "-":
        print(*(test.id() for test in suite), sep="\n")
        return
    Recorder.record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with os_helper.temp_cwd(f"cwd-{os.getpid()}"):
        unittest.TextTestRunner(resultclass=Recorder, verbosity=2, stream=sys.stdout).run(suite)
    os.write(Recorder.record, b"end\n")


if __name__ == "__main__":
    main()
