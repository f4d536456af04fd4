"""`sdp nfs proxy` as a process, on the stand-in for RDMA devices: what its own process runs short of ends nothing."""

import os
import resource
import signal
import socket
import subprocess
import time

import pytest

from . import test_verbs

ADDRESS = "10.9.0.1"
LIMIT_S = 60
TICKS = os.sysconf("SC_CLK_TCK")

pytestmark = test_verbs.pytestmark


class Proxy:
    """A proxy, whose server does not answer."""

    def __init__(self, folder, **streams):
        test_verbs.build()
        network = folder / "network"
        subprocess.run([test_verbs.NETWORK, network, "new", ADDRESS], check=True)
        environment = {**os.environ, "SDP_FAKE_NETWORK": str(network), "XDG_RUNTIME_DIR": str(folder)}
        self.ports = [free_port(), free_port()]
        listen, mount = (f"127.0.0.1:{port}" for port in self.ports)
        words = [ADDRESS, "--from", ADDRESS, "--listen", listen, "--mount-listen", mount, "--mount-port", "1"]
        command = [test_verbs.DOCTOR, "nfs", "proxy", *words, "--memory", "6"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **streams)
        assert self.process.stdout.readline().startswith("listens"), self.process.wait(LIMIT_S)

    def ask(self, which=0):
        """Connects, from a port above 1023, which is refused: so the connection ends."""
        with socket.create_connection(("127.0.0.1", self.ports[which]), timeout=LIMIT_S) as stream:
            try:
                return stream.recv(1) == b""
            except ConnectionResetError:
                return True

    def ticks(self):
        """Processor time that it had."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            return sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=LIMIT_S)
        finally:
            self.process.kill()
        assert self.process.returncode == 0


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.fixture(name="start")
def _start(tmp_path):
    started = []

    def start(**streams):
        started.append(Proxy(tmp_path, **streams))
        return started[-1]

    yield start
    for proxy in started:
        proxy.close()


def test_a_line_that_nobody_reads_ends_nothing(start):
    """Its stderr is a pipe whose reader has gone when it has something to say."""
    reader, writer = os.pipe()
    proxy = start(stderr=writer)
    os.close(writer)
    os.close(reader)
    assert all(proxy.ask() for _ in range(3))
    assert proxy.process.poll() is None


def test_without_a_descriptor_for_a_client_it_waits(start):
    """It does not try again and again; when there is a descriptor, the client has its turn."""
    proxy = start(stderr=subprocess.DEVNULL)
    assert proxy.ask(0) and proxy.ask(1)
    used = len(os.listdir(f"/proc/{proxy.process.pid}/fd"))
    before = resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (used, before[1]))
    waiting = [socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) for port in proxy.ports]
    time.sleep(0.2)
    begin = proxy.ticks()
    time.sleep(1)
    assert proxy.ticks() - begin < TICKS / 4
    resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, before)
    for stream in waiting:
        assert stream.recv(1) == b""
        stream.close()
