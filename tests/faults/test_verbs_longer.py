"""A longer ring for bytes that go back (decision 0052), of connections that are reset meanwhile; with the stand-in for RDMA
devices."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from .test_verbs import ADDRESSES, LIMIT_S, PORT, Hosts, built, hosts, marked, pytestmark
from .test_verbs_relay import until

__all__ = ["Hosts", "built", "hosts", "pytestmark"]
PROGRAM = Path(__file__).parent / "programs" / "longer.py"
# They meet among the first.
AT = 500
RING = 128 * 1024


def anonymous(pid):
    """Bytes of private memory that is of no file."""
    count = 0
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="ascii").splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            count += end - begin
    return count


def queues(hosts, number):
    """Bytes unread and unsent, of the one connection that is established there."""
    argv = hosts.inside(number, "ss", "-Htn", "state", "established", f"( sport = :{PORT} or dport = :{PORT} )")
    (line,) = subprocess.check_output(argv, text=True).splitlines()
    return tuple(map(int, line.split()[:2]))


def begin(hosts, how):
    """Both ends, when the client has sent all, and how much; it has met the server."""
    server = hosts.serve(AT, hosts.path, program=PROGRAM)
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, AT, hosts.path, how, program=PROGRAM)
    until((hosts.path / "server").exists)
    sent = int((hosts.path / "sent").read_text(encoding="ascii"))
    assert sent > RING, sent
    return server, client, sent


@pytest.mark.integrity
def test_the_mapping_goes_with_the_connection(hosts):
    """The client is killed when all that is unread lies in the longer ring of an end that waits for its answer."""
    server, client, sent = begin(hosts, "still")
    pid = int((hosts.path / "server").read_text(encoding="ascii"))
    before = anonymous(pid)
    (hosts.path / "go").touch()
    marked(hosts, 1)
    until(lambda: queues(hosts, 0)[0] == 0 and queues(hosts, 1)[1] == 0)
    during = anonymous(pid)
    assert during - before >= sent, (before, during, sent)
    os.killpg(client.pid, signal.SIGKILL)
    until((hosts.path / "closed").exists)
    after = anonymous(pid)
    (hosts.path / "end").touch()
    assert server.wait(LIMIT_S) == 0, server.communicate()
    assert during - after > (during - before) / 2, (before, during, after)


@pytest.mark.integrity
def test_no_memory_for_what_comes_back(hosts):
    """The client's call ends: what it would have to wait for cannot come."""
    server, client, _ = begin(hosts, "poor")
    (hosts.path / "go").touch()
    (hosts.path / "end").touch()
    out, err = client.communicate(timeout=LIMIT_S)
    assert (client.returncode, out) == (0, "reset\n"), (client.returncode, out, err)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1, report
