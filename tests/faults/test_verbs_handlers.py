"""Connections between hosts: a handler that interrupted the memory allocator closes one.

The devices are stand-ins (`test_verbs.py`), which want memory where real ones do. The program's allocator has one lock, as
a handler finds it: a call that needed it there would wait for ever, and so would one that waits for a thread that does.
"""

import json
import os
import select
import subprocess

import pytest

from .harness import SDP, TARGET
from .test_verbs import ADDRESSES, LIBRARY, LIMIT_S, PORT, ROOT, Hosts, built, pytestmark

__all__ = ["built", "pytestmark"]

PROGRAM = TARGET / "faults" / "allocator"


class Allocating(Hosts):
    """Two hosts with the program at both."""

    def start(self, number, name, *words):
        argv = [SDP, "run", "--no-config", "--set", "fabrics=shm,verbs", "--report", self.path / f"{name}.json", "--",
                PROGRAM, *words]
        environment = {**os.environ, "SDP_LIBRARY": str(LIBRARY), "SDP_FAKE_NETWORK": str(self.path / "network")}
        process = subprocess.Popen(self.inside(number, *argv), env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def ends(self, process, says):
        """It does what it says in time."""
        out, failed = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out, failed) == (0, says, "")

    def report(self, name):
        return json.loads((self.path / f"{name}.json").read_text())


@pytest.fixture
def hosts():
    PROGRAM.parent.mkdir(exist_ok=True)
    source = ROOT / "tests" / "faults" / "programs" / "allocator.c"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic", source, "-o", PROGRAM], check=True)
    hosts = Allocating()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.mark.parametrize(("how", "met"), [("opens", 1), ("makes", 2), ("same", 1)])
def test_a_handler_closes_while_another_thread_wants_memory(hosts, how, met):
    """The thread has the device's lock, and waits for what the handler interrupted."""
    hosts.start(0, "server", "serve", ADDRESSES[0], PORT)
    hosts.listens()
    hosts.ends(hosts.start(1, "client", how, ADDRESSES[0], PORT), "closed\n")
    hosts.leave_nothing()
    assert hosts.report("client")["fabrics"]["verbs"] == met, hosts.report("client")


def test_a_handler_closes_while_a_request_is_on_its_way(hosts):
    """The queue pair was made; it is destroyed later, by a close outside handlers, while the program lives on."""
    server = hosts.start(0, "server", "asks", ADDRESSES[0], PORT)
    hosts.listens()
    client = hosts.start(1, "client", "holds", ADDRESSES[0], PORT)
    try:
        readable, _, _ = select.select([server.stdout], [], [], LIMIT_S)
        assert readable and server.stdout.readline() == "closed\n"
        assert json.loads(hosts.network("totals"))["CreateQp"] == 1
        hosts.wait(lambda live: live["qps"] == 0)
    finally:
        client.stdin.close()
    hosts.ends(server, "")
    assert client.wait(LIMIT_S) == 0, client.stderr.read()
    assert hosts.report("server")["fabrics"]["verbs"] == 0
