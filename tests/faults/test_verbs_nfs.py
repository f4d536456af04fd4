"""`sdp nfs` as processes, on the stand-in for RDMA devices: what they run short of, what is missing, and how a server is mounted."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import test_verbs

ADDRESS = "10.9.0.1"
LIMIT_S = 60
TICKS = os.sysconf("SC_CLK_TCK")

pytestmark = test_verbs.pytestmark


# An NFS server that has all versions and does nothing.
NULL_SERVER = '''
import socket, threading
def serve(stream):
    while head := stream.recv(4, socket.MSG_WAITALL):
        call = stream.recv(int.from_bytes(head, "big") & 0x7FFFFFFF, socket.MSG_WAITALL)
        stream.sendall(bytes([128, 0, 0, 24]) + call[:4] + bytes([0, 0, 0, 1]) + bytes(16))
with socket.create_server(("127.0.0.1", 2049)) as listener:
    print("listens", flush=True)
    while True:
        threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
'''


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


def until(condition, what):
    """Waits until something holds."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


class Processes:
    """Commands in two network namespaces, each with a device."""

    def __init__(self):
        test_verbs.build()
        self.hosts = test_verbs.Hosts()
        self.started = []
        self.environment = {**os.environ, "SDP_FAKE_NETWORK": str(self.hosts.path / "network"), "XDG_RUNTIME_DIR": str(self.hosts.path)}

    def start(self, number, *words):
        """Starts one; it has said that it listens."""
        command = self.hosts.inside(number, *words)
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        assert process.stdout.readline().startswith("listens"), process.communicate(timeout=LIMIT_S)
        return process

    def run(self, number, *words):
        """Runs `sdp` to its end."""
        command = self.hosts.inside(number, test_verbs.DOCTOR, *words)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def gateway(self, *options):
        words = ["gateway", "--allow", "any", "--listen", test_verbs.ADDRESSES[0], "--memory", "8", *options]
        return self.start(0, test_verbs.DOCTOR, "nfs", *words)

    def gateways_say(self):
        """What `sdp nfs stat` says of gateways."""
        return json.loads(self.run(0, "nfs", "stat", "--json").stdout)["gateways"]

    def end(self, process):
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, (out, err)
        return err

    def close(self):
        for process in self.started:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
        self.hosts.close()


@pytest.fixture(name="processes")
def _processes():
    processes = Processes()
    yield processes
    processes.close()


def test_a_mount_says_by_what_and_why(processes):
    """By RDMA if this kernel can, else by a proxy if there is one, else by TCP."""
    server = test_verbs.ADDRESSES[0]
    mount = lambda: processes.run(1, "nfs", "mount", "--print", f"{server}:/data", "/mnt")
    done = mount()
    assert done.returncode == 1 and f"{server} cannot be mounted: by RDMA, port 20049: fake1: nobody listens there" in done.stderr, done
    processes.start(0, sys.executable, "-c", NULL_SERVER)
    gateway = processes.gateway()
    findings = json.loads(processes.run(1, "doctor", "--nfs", "--json").stdout)["findings"]
    (module,) = (finding["what"] for finding in findings if finding["check"] == "nfs-module")
    proxy = processes.start(1, test_verbs.DOCTOR, "nfs", "proxy", server, "--mount-port", "1", "--memory", "6")
    done = mount()
    if "this kernel has no rpcrdma" in module:
        assert done.stdout == "mount -t nfs -o vers=4.2,proto=tcp,port=12049,hard 127.0.0.1:/data /mnt\n", done
        assert f"by the proxy at 127.0.0.1:12049: {server}:20049 answers fake1 by RDMA" in done.stderr, done
    else:
        assert done.stdout == f"mount -t nfs -o vers=4.2,proto=rdma,port=20049,hard {server}:/data /mnt\n", done
        assert f"by RDMA: {server}:20049 answers fake1" in done.stderr, done
    processes.end(proxy)
    assert f"{test_verbs.ADDRESSES[1]} connected" in processes.end(gateway)


@pytest.mark.parametrize("role", ["gateway", "proxy"])
def test_what_is_missing_at_the_start_is_said(processes, role):
    """No device, a port that is taken, 64 KiB of memory that may be locked: it ends at once, and names what to change."""
    here, there = test_verbs.ADDRESSES
    words = {
        "gateway": lambda address: ["--allow", "any", "--memory", "8", "--listen", address],
        "proxy": lambda address: [there, "--mount-port", "1", "--memory", "6", "--from", address],
    }[role]
    sdp = [test_verbs.DOCTOR, "nfs", role]
    limited = ["setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536:65536"]
    processes.start(0, *sdp, *words(here))
    port = f"{here}:20049" if role == "gateway" else "127.0.0.1:12049"
    for command, why in [
        ([*sdp, *words("10.9.0.77")], "no RDMA device with address 10.9.0.77"),
        ([*sdp, *words(here)], f"{port} cannot be listened on"),
        ([*limited, *sdp, *words(here)], "64 KiB of memory may be locked, at least"),
    ]:
        done = subprocess.run(
            processes.hosts.inside(0, *command), env=processes.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 1 and why in done.stderr, done


@pytest.mark.parametrize("role", ["gateway", "proxy"])
def test_a_device_that_goes_ends_the_process_with_a_reason(processes, role):
    """So its manager starts it again, and a client does not wait for a process that can do nothing."""
    here, there = test_verbs.ADDRESSES
    words = [there, "--mount-port", "1", "--memory", "6"]
    process = processes.gateway() if role == "gateway" else processes.start(0, test_verbs.DOCTOR, "nfs", "proxy", *words)
    processes.hosts.network("remove", "0")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1 and "the RDMA device is gone" in err, (here, err)


def test_a_client_that_is_not_named_is_counted_by_address(processes):
    """And `sdp nfs stat` shows it."""
    here, there = test_verbs.ADDRESSES
    gateway = processes.start(0, test_verbs.DOCTOR, "nfs", "gateway", "--allow", "10.8.0.0/16", "--listen", here, "--memory", "8")
    done = processes.run(1, "nfs", "mount", "--print", f"{here}:/data", "/mnt")
    assert done.returncode == 1 and "this host is refused" in done.stderr, done
    shown = processes.run(0, "nfs", "stat").stdout
    assert f"refused: {there} 1" in shown and "refused because: not-allowed 1" in shown, shown
    assert f"{there} refused: not in --allow" in processes.end(gateway)


class Calls:
    """NULL calls through the proxy, one after the other, each with the next XID, until they are enough."""

    def __init__(self, processes):
        program = processes.hosts.path / "calls.py"
        program.write_text(CALLS, encoding="utf-8")
        self.process = processes.start(1, sys.executable, str(program))

    def done(self):
        """Ends them; the number of calls that were answered."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, (out, err)
        return int(out)


CALLS = '''
import signal, socket, struct, sys
enough = []
signal.signal(signal.SIGTERM, lambda *_: enough.append(1))
def ask(stream, xid):
    stream.sendall(struct.pack(">11I", 0x80000028, xid, 0, 2, 100003, 3, 0, 0, 0, 0, 0))
    mark, got, *rest = struct.unpack(">7I", stream.recv(28, socket.MSG_WAITALL))
    assert (mark, got, rest) == (0x80000018, xid, [1, 0, 0, 0, 0]), (mark, got, rest)
with socket.create_connection(("127.0.0.1", 12049), timeout=60) as stream:
    ask(stream, 1)
    print("listens", flush=True)
    xid = 1
    while not enough:
        xid += 1
        ask(stream, xid)
print(xid)
'''


def test_a_takeover_under_load_costs_no_call(processes):
    """The old gateway gives way and ends by itself; the new one is asked, is shown, and can be replaced in its turn."""
    here, there = test_verbs.ADDRESSES
    processes.start(0, sys.executable, "-c", NULL_SERVER)
    # Where nobody is to be replaced, it begins as ever.
    gateways = [processes.gateway("--takeover")]
    proxy = processes.start(1, test_verbs.DOCTOR, "nfs", "proxy", here, "--mount-port", "1", "--memory", "6", "--insecure")
    calls = Calls(processes)
    for _ in range(3):
        gateways.append(processes.gateway("--takeover"))
        out, err = gateways[-2].communicate(timeout=LIMIT_S)
        assert gateways[-2].returncode == 0 and "another one has taken over" in err, (out, err)
        (status,) = processes.gateways_say()
        assert status["listen"] == f"{here}:20049" and not status["ending"], status
        # The client has come over.
        until(lambda: processes.gateways_say()[0]["counts"]["calls"] > 1, "calls by the new gateway")
    (status,) = processes.gateways_say()
    assert [client["address"] for client in status["clients"]] == [there], status
    answered = calls.done()
    (told,) = json.loads(processes.run(1, "nfs", "stat", "--json").stdout)["proxies"]
    assert told["counts"]["failed"] == 0 and told["counts"]["connects"] == 4, told
    assert answered <= told["counts"]["calls"] <= answered + 3 * 32, (answered, told)
    processes.end(proxy)
    processes.end(gateways[-1])


def test_a_replacement_that_never_listens_leaves_the_gateway_in_its_place(processes):
    """One that has connected and ends, and one that is without a word: the gateway listens again."""
    here = test_verbs.ADDRESSES[0]
    processes.start(0, sys.executable, "-c", NULL_SERVER)
    gateway = processes.gateway()
    folders = [folder / "sdp-nfs/handover" for folder in (Path("/run"), processes.hosts.path)]
    (socket_of,) = [folder / f"{here}:20049" for folder in folders if (folder / f"{here}:20049").exists()]
    with socket.socket(socket.AF_UNIX) as replacement:
        replacement.settimeout(LIMIT_S)
        replacement.connect(str(socket_of))
        assert replacement.recv(1) == b"\1"
    mounted = lambda: processes.run(1, "nfs", "mount", "--print", f"{here}:/data", "/mnt")
    until(socket_of.exists, "the gateway's return")
    assert "answers fake1" in mounted().stderr
    assert "does not listen" in processes.end(gateway)


def test_a_gateway_on_two_addresses_outlives_one_of_its_devices(processes):
    """Each address is served and shown; one whose device goes is listened on again when the device is back."""
    here, second = test_verbs.ADDRESSES[0], "10.9.0.3"
    processes.start(0, sys.executable, "-c", NULL_SERVER)
    processes.hosts.enter(0, "ip", "addr", "add", f"{second}/24", "dev", "wire0")
    processes.hosts.network("add", second)
    twice = processes.run(0, "nfs", "gateway", "--allow", "any", "--listen", here, "--listen", f"{here}:20049")
    assert twice.returncode == 1 and "it is named twice" in twice.stderr, twice
    none = processes.run(0, "nfs", "gateway", "--allow", "any", "--memory", "8", "--listen", here, "--listen", "10.9.0.77")
    assert none.returncode == 1 and "no RDMA device with address 10.9.0.77" in none.stderr, none
    gateway = processes.gateway("--listen", second)
    answers = lambda address: "answers fake1" in processes.run(1, "nfs", "mount", "--print", f"{address}:/data", "/mnt").stderr
    assert answers(here) and answers(second)
    shown = lambda: [status["listen"] for status in processes.gateways_say()]
    assert shown() == [f"{here}:20049", f"{second}:20049"]
    processes.hosts.network("remove", "2")
    until(lambda: shown() == [f"{here}:20049"], "the loss of a device")
    assert answers(here) and not answers(second)
    processes.hosts.network("add", second)
    until(lambda: len(shown()) == 2, "the return of a device")
    assert answers(second)
    err = processes.end(gateway)
    assert f"{second}:20049: the RDMA device is gone" in err and f"{second}:20049 is listened on again" in err, err
