"""A host without RDMA: connections to other hosts are TCP, and what that costs is one question in each process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .harness import SDP
from .test_verbs import LIMIT_S, PORT, PROGRAM, Hosts, built, pytestmark

__all__ = ["built", "pytestmark"]
CONNECTIONS = 3


class Bare(Hosts):
    """Two hosts without devices, with the library as it is delivered; what it asks of files and sockets is traced."""

    def start(self, number, name, *words, settings=(), **_):
        options = [word for setting in settings for word in ("--set", setting)]
        argv = ["strace", "-f", "-e", "trace=%file,socket", "-o", self.path / f"{name}.strace", SDP, "run", "--no-config",
                *options, "--report", self.path / f"{name}.json", "--", sys.executable, PROGRAM, *words]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(self.inside(number, *argv), env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def calls(self, name, word):
        return [line for line in (self.path / f"{name}.strace").read_text().splitlines() if word in line]


@pytest.fixture
def hosts():
    hosts = Bare()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.mark.skipif(Path("/dev/infiniband/rdma_cm").exists(), reason="this host has RDMA")
@pytest.mark.parametrize("settings", [("fabrics=shm,verbs",), ("fabrics=shm",)], ids=["verbs", "shm"])
def test_nothing_of_rdma_is_touched(hosts, settings):
    """Whether there is a connection manager is asked once, where verbs are among the fabrics; no library is looked for, no
    device opened, and no address tried."""
    server = hosts.serve(settings=settings)
    client = hosts.ask("--rounds", 30, "--connections", CONNECTIONS, settings=settings)
    hosts.every_byte(client)
    os.killpg(server.pid, signal.SIGTERM)
    server.communicate(timeout=LIMIT_S)
    for name in ("client", "server"):
        report = json.loads((hosts.path / f"{name}.json").read_text())
        assert report["reasons"] == {"remote-peer": CONNECTIONS}, report
        asked = hosts.calls(name, "infiniband")
        # The client's threads may ask at the same time, before one of them knows; the server accepts in one.
        wanted = "verbs" in settings[0]
        most = 0 if not wanted else CONNECTIONS if name == "client" else 1
        assert wanted <= len(asked) <= most, asked
        assert all("stat" in call and "/dev/infiniband/rdma_cm" in call for call in asked), asked
        assert all("ENOENT" in call or "<unfinished" in call for call in asked), asked
        assert not hosts.calls(name, "ibverbs"), name
        assert not [call for call in hosts.calls(name, "SOCK_DGRAM") if "AF_INET" in call], name
