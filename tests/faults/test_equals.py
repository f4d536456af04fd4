"""Who can read a process's memory is believed about its connections; others have to be proven."""

import platform
import re
from pathlib import Path

import pytest

from .harness import EAGER, both, scenario

# Whether the ends ask the kernel about each other, by what distinguishes the client. Under a filter, which may kill for
# a system call, a process neither tells nor believes; nor does anybody where Yama is at work.
ASKS = {"equal": False, "filtered": True}


def everybody_asks():
    """Whether this system keeps processes of one user from each other, or all of them are under a filter."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    is_closed = scope.exists() and scope.read_text(encoding="utf-8") != "0\n"
    return is_closed or "Seccomp:\t0\n" not in Path("/proc/self/status").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ASKS)
def test_again(kind):
    outcome = scenario("equals", "again", kind, env=EAGER, limit_s=60)
    asks = ASKS[kind] or everybody_asks()
    assert outcome.seen == {"same": True, "asked": {"server": asks, "client": asks}}, outcome.describe()


def may_trace():
    """Whether this process has CAP_SYS_PTRACE, so that a child can have less."""
    own = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"CapEff:\t([0-9a-f]+)", own)[1], 16) & 1 << 19 != 0


@pytest.mark.skipif(not may_trace(), reason="needs a privilege that one process does not have")
def test_weaker():
    """Who may not look into the other process keeps nothing that both have."""
    outcome = scenario("equals", "again", "weaker", env=EAGER, limit_s=60)
    assert outcome.seen == {"same": False, "asked": {"server": False, "client": False}}, outcome.describe()


def test_hidden():
    outcome = scenario("equals", "hidden", env=EAGER, limit_s=60)
    wanted = {"same": True, "before": everybody_asks(), "after": True}
    assert outcome.seen == wanted, outcome.describe()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="makes its fork from machine code")
def test_forked():
    outcome = scenario("equals", "forked", env=EAGER, limit_s=60)
    assert outcome.seen == {"new": [True, True]}, outcome.describe()


@pytest.mark.parametrize("when", ["bound", "unbound"])
def test_bound(when):
    both("equals", "bound", when, env=EAGER, limit_s=60)
