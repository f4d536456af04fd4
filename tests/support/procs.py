"""Starting and ending programs: every wait is bounded, every process is ended by its own pid.

The test process is made a *subreaper*: whatever a program leaves behind becomes our child and is
found, named and ended, so that no test can leave anything running.
"""

import ctypes
import os
import signal
import subprocess
import time

from .limits import now

POLL_S = 0.01
STOP_LIMIT_S = 20
LEFTOVER_LIMIT_S = 5
PR_SET_CHILD_SUBREAPER = 36


class Timeout(AssertionError):
    """A bounded wait reached its bound."""


def wait_until(condition, what, limit_s=20):
    """Waits until `condition()` is true and returns its value; a failure after `limit_s`."""
    deadline = now() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if now() >= deadline:
            raise Timeout(f"{what}: not within {limit_s} s")
        time.sleep(POLL_S)


def become_subreaper():
    """Makes orphans of our programs our children, so that they can be found."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children():
    """The pids of our living children, with their command lines."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                fields = f.read().rpartition(")")[2].split()
            if fields[0] == "Z" or int(fields[1]) != os.getpid():
                continue
            with open(f"/proc/{entry}/cmdline", "rb") as f:
                found[int(entry)] = f.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def reap():
    """Collects zombies that were adopted; our own programs are collected by their owners."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in Program.running:
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                fields = f.read().rpartition(")")[2].split()
            if fields[0] == "Z" and int(fields[1]) == os.getpid():
                os.waitpid(int(entry), os.WNOHANG)
        except (FileNotFoundError, ProcessLookupError, ChildProcessError):
            continue


def end_leftovers(keep=()):
    """Ends children that should have ended by themselves; returns their command lines."""

    def left():
        reap()
        owned = Program.running.keys() | set(keep)
        return {pid: name for pid, name in children().items() if pid not in owned}

    try:
        wait_until(lambda: not left(), "end of adopted processes", LEFTOVER_LIMIT_S)
        return []
    except Timeout:
        names = []
        # Killing one may orphan its own children to us: again until there is none.
        for _ in range(20):
            found = left()
            if not found:
                break
            for pid, name in found.items():
                names.append(name)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return names


class Program:
    """A program that runs beside the test, with its output in a file."""

    running = {}

    def __init__(self, argv, log, *, stdin=subprocess.DEVNULL, cwd=None, env=None, merge=True):
        self.argv = [str(word) for word in argv]
        self.log = log
        self.errors = log if merge else log.with_suffix(".err")
        with open(log, "wb") as out, open(self.errors, "ab") as err:
            self.process = subprocess.Popen(
                self.argv,
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT if merge else err,
                cwd=cwd,
                env=env,
            )
        self.pid = self.process.pid
        Program.running[self.pid] = self

    def is_running(self):
        """False once it has ended."""
        if self.process.poll() is None:
            return True
        Program.running.pop(self.pid, None)
        return False

    def wait(self, limit_s):
        """Exit status (negative: signal number); ends the program and fails after `limit_s`."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Timeout(f"{' '.join(self.argv)}: still running after {limit_s} s") from None
        Program.running.pop(self.pid, None)
        return code

    def stop(self, signum=signal.SIGTERM, limit_s=STOP_LIMIT_S):
        """Asks the program to end and waits for it; its exit status."""
        if self.is_running():
            self.process.send_signal(signum)
        return self.wait(limit_s)

    def kill(self):
        """Ends the program at once."""
        if self.is_running():
            self.process.kill()
            self.process.wait()
        Program.running.pop(self.pid, None)

    def output(self):
        """What it wrote to standard output (and, if merged, to standard error)."""
        return self.log.read_bytes()
