"""Relays in the place of connections between two network namespaces, with the stand-in for RDMA devices (decision 0045)."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .test_verbs import ADDRESSES, LIMIT_S, PORT, Hosts, built, hosts, pytestmark

__all__ = ["Hosts", "built", "hosts", "pytestmark"]
PROGRAM = Path(__file__).parent / "programs" / "relays.py"
AT = 120
UNREAD = 30_000
MUCH = 3 << 20


def until(condition):
    for _ in range(LIMIT_S * 50):
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to that")


class Ends:
    """A server and a client that have met, and a holder that gets the server's connection when the test says so."""

    def __init__(self, hosts, monkeypatch, how, client, steps, words="", before=()):
        self.hosts, self.scratch = hosts, hosts.path
        (self.scratch / "client").mkdir()
        (self.scratch / "client").chmod(0o1777)
        (self.scratch / "client" / "steps").write_text("wait=ever", encoding="ascii")
        (self.scratch / "steps").write_text(steps, encoding="ascii")
        monkeypatch.setenv("RELAYS", words)
        self.server = hosts.start(0, "server", "serve", PORT, AT, how, self.scratch, program=PROGRAM, before=before)
        hosts.listens()
        monkeypatch.setenv("RELAYS", "")
        self.client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, AT, client, self.scratch, program=PROGRAM)

    def comes_to(self, name):
        until((self.scratch / f"at-{name}").exists)

    def may_go_on(self, name):
        (self.scratch / f"go-{name}").touch()

    def relays(self):
        """Those in the server's network."""
        network = os.readlink(f"/proc/{self.hosts.holders[0].pid}/ns/net")
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if (entry / "comm").read_text() == "sdp-relay\n" and os.readlink(entry / "ns/net") == network:
                    found.append(int(entry.name))
            except (OSError, ValueError):
                pass
        return found

    def relay(self):
        """The one relay, when there is it."""
        (pid,) = until(self.relays)
        return pid

    def ends_relay(self):
        """Waits until there is none."""
        until(lambda: not self.relays())

    def unread(self, count):
        """Waits until so many bytes lie unread at the server's host."""
        argv = self.hosts.inside(0, "ss", "-Htn", "sport", "=", f":{PORT}")

        def are_there():
            lines = subprocess.check_output(argv, text=True).splitlines()
            return any(int(line.split()[1]) >= count for line in lines)

        until(are_there)

    def hands_over(self):
        self.comes_to("hand")
        self.comes_to("client")
        self.may_go_on("hand")
        self.comes_to("hold")

    def said(self):
        """What the new holder has seen."""
        out, err = self.server.communicate(timeout=LIMIT_S)
        return out.split("\n")[:-1], err


def test_the_other_end_leaves_too_and_dies(hosts, monkeypatch):
    """What it had taken is still to be sent, and nobody will send that: who writes behind it is told, and the relay ends."""
    ends = Ends(hosts, monkeypatch, "exec", "leaves", f"take={UNREAD} wait=leave end send=1000 wait=sent send=1000 close")
    ends.hands_over()
    relay = ends.relay()
    ends.comes_to("leave")
    os.kill(relay, signal.SIGSTOP)
    ends.may_go_on("client")
    ends.unread(48)
    os.killpg(ends.client.pid, signal.SIGKILL)
    ends.client.communicate()
    os.kill(relay, signal.SIGCONT)
    ends.may_go_on("leave")
    ends.ends_relay()
    ends.may_go_on("sent")
    said, err = ends.said()
    assert said[:2] == ["all", "end"] and said[-1] in ("ConnectionResetError", "BrokenPipeError"), (said, err)


@pytest.mark.integrity
def test_messages_behind_what_the_other_kernel_has(hosts, monkeypatch):
    """What lies in receive buffers comes behind megabytes that are still in the other end's send buffer: all of it is taken."""
    first = 300_000
    # Whose send buffer may be larger than the system lets others have it.
    hosts.users = None, None
    ends = Ends(hosts, monkeypatch, "exec", "full", f"take={MUCH}+{first} end", f"first={first}")
    ends.comes_to("more")
    ends.comes_to("first")
    ends.may_go_on("first")
    ends.comes_to("hand")
    ends.may_go_on("more")
    ends.hands_over()
    ends.relay()
    ends.may_go_on("client")
    said, err = ends.said()
    assert said == ["all", "end"], (said, err)
    ends.client.communicate(timeout=LIMIT_S)
    report = json.loads((hosts.path / "client.json").read_text())
    # Back to SDP at the end.
    assert report["switches"]["promoted"] >= 2, report


def switches(pid):
    """How often a process has gone to sleep."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("voluntary_ctxt_switches")).split()[1])


def test_a_relay_sleeps_beside_an_end_that_is_stopped(hosts, monkeypatch):
    """Its marker waits until the other end's kernel takes more, which nobody asks for again and again."""
    ends = Ends(hosts, monkeypatch, "exec", "silent", f"take={UNREAD} wait=ever", "flood=1")
    ends.hands_over()
    relay = ends.relay()
    time.sleep(0.5)
    before, begin = switches(relay), time.monotonic()
    time.sleep(1)
    count, elapsed = switches(relay) - before, time.monotonic() - begin
    assert count <= 1 + 20 * elapsed, count


@pytest.mark.parametrize("before", [(), ("prlimit", "--stack=unlimited")], ids=["below", "above"])
def test_memory_of_the_program_that_was(hosts, monkeypatch, before):
    """A relay keeps nothing of it, be it mapped below the libraries or above them."""
    kept = 200
    ends = Ends(hosts, monkeypatch, "exec", "silent", f"take={UNREAD} wait=ever", f"kept={kept}", before)
    ends.hands_over()
    rollup = Path(f"/proc/{ends.relay()}/smaps_rollup")

    def is_small():
        lines = rollup.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) < kept * 1024 // 4

    until(is_small)


@pytest.mark.parametrize("how", ["HUP", "INT", "TERM"])
def test_a_signal_ends_a_relay(hosts, monkeypatch, how):
    """When nothing is under way any more."""
    ends = Ends(hosts, monkeypatch, "exec", "silent", f"wait=read take={UNREAD} end")
    ends.hands_over()
    os.kill(ends.relay(), getattr(signal, f"SIG{how}"))
    ends.ends_relay()
    ends.may_go_on("read")
    said, err = ends.said()
    assert said == ["all", "ConnectionResetError"], (said, err)


@pytest.mark.parametrize("words", ["", "reaper=1", "thread=1 kept=50"], ids=["plain", "reaper", "thread"])
def test_a_relay_is_nobodys_child(hosts, monkeypatch, words):
    """Who waits for children finds none, also where orphans come to it; and a relay needs not more than its maker's stack."""
    ends = Ends(hosts, monkeypatch, "pass", "silent", f"take={UNREAD}", words)
    ends.hands_over()
    ends.relay()
    ends.comes_to("wait")
    ends.may_go_on("wait")
    said, err = ends.said()
    assert said == ["all", "no child"], (said, err)
