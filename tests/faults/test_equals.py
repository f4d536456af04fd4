"""Who could attach to a process with a debugger is believed about its connections; others have to be proven."""

from pathlib import Path

import pytest

from .harness import EAGER, scenario

CONNECTIONS = 4


def are_equals_open():
    """Whether this system lets unconfined processes of one user attach to each other."""
    own = Path("/proc/self/status").read_text(encoding="utf-8")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    is_free = "NoNewPrivs:\t0" in own and "Seccomp:\t0" in own
    return is_free and (not scope.exists() or scope.read_text(encoding="utf-8") == "0\n")


@pytest.mark.parametrize("confined", ["nobody", "client", "server"])
def test_equals(confined):
    outcome = scenario("equals", "server", confined, env=EAGER, limit_s=60)
    for side, other in [("server", "client"), ("client", "server")]:
        # What a confined process inherits is confined too: the server starts the client.
        is_confined = confined == other or confined == "server"
        asks = is_confined or not are_equals_open()
        wanted = {"attached": [True] * CONNECTIONS, "asked": asks}
        assert outcome.seen[side] == wanted, outcome.describe()
    assert outcome.report.count("connections", "sdp") == 2 * CONNECTIONS, outcome.describe()
