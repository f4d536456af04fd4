"""Several RDMA devices in one process, and addresses that are no device's: each connection between two network namespaces uses
the device that has its own address. The devices are stand-ins (`test_verbs.py`).
"""

import json
import re
import subprocess
import time

import pytest

from support.limits import now

from .harness import SDP
from .test_verbs import ADDRESSES, HANDBACK, LIMIT_S, PORT, Hosts, built, by_sdp, fault, marked, processes_of, pytestmark

__all__ = ["built", "pytestmark"]
# Of the second and third wire, at the server and at the client.
SECOND, THIRD = ("10.9.1.1", "10.9.1.2"), ("10.9.2.1", "10.9.2.2")
SERVER = ADDRESSES[0], SECOND[0]


class Wired(Hosts):
    """Two hosts with three wires between them, of which two lead to devices."""

    def __init__(self):
        super().__init__()
        b = self.holders[1].pid
        for which, addresses in enumerate((SECOND, THIRD), 1):
            names = [f"wire{which}{number}" for number in range(2)]
            self.enter(0, "ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1], "netns", str(b))
            for number, address in enumerate(addresses):
                self.enter(number, "ip", "addr", "add", f"{address}/24", "dev", names[number])
                self.enter(number, "ip", "link", "set", names[number], "up")
        self.add_seconds()

    def add_seconds(self):
        for address in SECOND:
            self.network("add", address)

    def busy(self):
        """Options of a client that takes its time until it is told that it is `enough`."""
        return "--rounds", 1500, "--pace", 0.005, "--pace-until", self.path / "enough"

    def enough(self):
        (self.path / "enough").touch()

    def ask_at(self, addresses, *options, **how):
        return self.start(1, "client", "ask", ",".join(addresses), PORT, *options, **how)


@pytest.fixture
def hosts():
    hosts = Wired()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.mark.integrity
@pytest.mark.parametrize("options", [(), ("--async",), ("--fork",)], ids=["threads", "asyncio", "fork"])
def test_two_devices_at_once(hosts, options):
    """Connections over both, in one process; in a child for each connection at a server that forks."""
    server = hosts.serve(*options)
    client = hosts.ask_at(SERVER, "--connections", 4, *hosts.busy(), *(options if "--async" in options else ()))
    # The client has two; so has a server of threads, and each child of another has its own.
    hosts.wait(lambda live: live["contexts"] == (6 if "--fork" in options else 4) and live["qps"] == 8)
    hosts.enough()
    hosts.every_byte(client)
    client, server = hosts.stop(server)
    for report in (client, server):
        assert report["fabrics"]["verbs"] == 4 and report["reasons"] == {}, report
        assert by_sdp(report) > sum(report["bytes"].values()) / 2, report


@pytest.mark.integrity
@pytest.mark.parametrize("options", [(), ("--async",)], ids=["threads", "asyncio"])
@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_one_of_two_devices_goes(hosts, gone, options):
    """Devices 0 and 2 are the server's, 1 and 3 the client's. Its connection goes on over TCP, the other one by SDP; the
    device is given back."""
    server = hosts.serve(*options)
    client = hosts.ask_at(SERVER, "--connections", 2, *hosts.busy(), *options)
    hosts.wait(lambda live: live["qps"] == 4)
    hosts.network("remove", str(gone))
    # While both go on.
    hosts.wait(lambda live: live["contexts"] == 3 and live["qps"] == 2)
    hosts.enough()
    hosts.every_byte(client)
    client, server = hosts.stop(server)
    for report in (client, server):
        # A connection that has met may not have moved yet when its device goes.
        assert 1 <= report["fabrics"]["verbs"] <= 2 and "protocol-violation" not in report["demotions"], report
        # Nearly half of all bytes are those of one connection behind the loss of its device.
        assert by_sdp(report) > sum(report["bytes"].values()) / 3, report
        assert report["bytes"]["tcp_sent"] > sum(report["bytes"].values()) / 12, report


def devices_shown(process):
    """By local address: the device and port that `sdp stat` names, and whether there is a queue pair."""
    shown = {}
    for one in process["connections"]:
        if one["device"]:
            address = one["local"].rpartition(":")[0]
            shown[address] = one["device"]["name"], one["device"]["port"], one["queue_pair"] is not None
    return shown


def devices_met(started):
    return [(one["name"], one["port"], one["ends"]) for process in processes_of([started]) for one in process["devices"]]


def test_each_connection_names_its_device(hosts):
    """In `sdp stat`, the report and for Prometheus; also when the device has gone."""
    server = hosts.serve()
    client = hosts.ask_at(SERVER, "--connections", 2, *hosts.busy())
    # Devices 0 and 2 are the server's, 1 and 3 the client's.
    ends = [(server, {ADDRESSES[0]: 0, SECOND[0]: 2}), (client, {ADDRESSES[1]: 1, SECOND[1]: 3})]

    def until_shown(gone=()):
        end = now() + LIMIT_S
        while now() < end:
            found = [process for started, _ in ends for process in processes_of([started])]
            wanted = [{address: (f"fake{at}", 1, address not in gone) for address, at in own.items()} for _, own in ends]
            if [devices_shown(process) for process in found] == wanted:
                return found
            time.sleep(0.05)
        raise AssertionError([devices_shown(process) for process in found])

    until_shown()
    hosts.network("remove", "2")
    # The client's end of that connection has lost its queue pair, too.
    for process, (_, own) in zip(until_shown(gone=SECOND), ends, strict=True):
        names = {f"fake{at}" for at in own.values()}
        assert {one["name"]: (one["port"], one["ends"]) for one in process["devices"]} == dict.fromkeys(names, (1, 1)), process
        assert process["device"]["name"] == process["devices"][0]["name"], process
        text = subprocess.run([SDP, "stat", "--pid", str(process["pid"])], check=True, capture_output=True, text=True).stdout
        text = " ".join(text.split())
        lost, kept = (f"fake{at}" for address, at in sorted(own.items(), key=lambda one: one[0] not in SECOND))
        assert f"no queue pair now, the last one was of {lost} port 1" in text, text
        assert re.search(rf"queue pair \d+ to \d+ of {kept} port 1", text), text
    scrape = subprocess.run([SDP, "stat", "--prometheus"], check=True, capture_output=True, text=True).stdout
    for name in ("fake0", "fake1", "fake2", "fake3"):
        assert re.search(rf'^sdp_device_connections_total{{.*device="{name}",port="1"}} 1$', scrape, re.MULTILINE), scrape
    hosts.enough()
    hosts.every_byte(client)
    for report, (_, own) in zip(reversed(hosts.stop(server)), ends, strict=True):
        assert report["devices"] == [{"name": f"fake{at}", "port": 1, "ends": 1} for at in sorted(own.values())], report


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["many", "many-child"])
def test_a_new_image_gets_connections_of_two_devices(hosts, how):
    """An image without the library, in the server or in a child of it: every stream goes on over TCP, and the devices have
    nothing left of the server's."""
    server = hosts.serve(how, 120, program=HANDBACK)
    asks = "ask-many", ",".join(SERVER), PORT, 120, hosts.path / "pause"
    client = hosts.start(1, "client", *asks, program=HANDBACK)
    pause = hosts.pause()
    # Three connections: two over the first device, one over the second.
    marked(hosts, 3)
    met = {name: ends for name, _, ends in devices_met(client)}
    assert met == {"fake1": 2, "fake3": 1}, met
    pause.unlink()
    hosts.every_byte(client)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 3 and by_sdp(report) > 3 * 40_000, report
    assert {one["name"]: one["ends"] for one in report["devices"]} == met, report
    hosts.wait(lambda live: not any(live.values()))


@pytest.mark.integrity
@pytest.mark.parametrize("options", [(), ("--in-turn",)], ids=["at-once", "in-turn"])
def test_an_address_without_device_decides_for_itself(hosts, options):
    """As where a program connects over a network for management first."""
    server = hosts.serve()
    hosts.every_byte(hosts.ask_at((THIRD[0], ADDRESSES[0], THIRD[0], SECOND[0]), "--rounds", 400, "--connections", 4, *options))
    for report in hosts.stop(server):
        assert report["fabrics"]["verbs"] == 2 and report["reasons"] == {"no-device": 2}, report


@pytest.mark.integrity
def test_what_was_short_is_had_later(hosts):
    """A refusal that may pass is asked about again: a later connection meets, and the one before stays on TCP."""
    server = hosts.serve()
    client = hosts.ask("--rounds", 120, "--connections", 2, "--in-turn", "--pace", 0.02, fail=[fault("RegMr", 1)])
    hosts.every_byte(client)
    client, _ = hosts.stop(server)
    assert client["fabrics"]["verbs"] == 1 and client["reasons"] == {"memlock": 1}, client


class Ported(Wired):
    """Two hosts with three wires between them; one device at each has a port on the first and one on the second."""

    def add_seconds(self):
        for number, address in enumerate(SECOND):
            self.network("port", str(number), address)


@pytest.fixture
def ported():
    hosts = Ported()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.mark.integrity
@pytest.mark.parametrize("options", [(), ("--fork",)], ids=["threads", "fork"])
def test_two_ports_of_a_device(ported, options):
    """Each connection meets through the port that has its address, and is shown with it; nothing is left behind."""
    server = ported.serve(*options)
    client = ported.ask_at(SERVER, "--connections", 4, *ported.busy())
    each = {f"fake{device}:{port}": 2 for device in range(2) for port in (1, 2)}
    ported.wait(lambda live: live["ports"] == each)
    wanted = {address: ("fake1", port, True) for port, address in enumerate((ADDRESSES[1], SECOND[1]), 1)}
    end = now() + LIMIT_S
    while [devices_shown(process) for process in processes_of([client])] != [wanted]:
        assert now() < end, processes_of([client])
        time.sleep(0.05)
    ported.enough()
    ported.every_byte(client)
    ported.wait(lambda live: live["qps"] == 0)
    for number, report in zip((1, 0), ported.stop(server), strict=True):
        ports = [{"name": f"fake{number}", "port": port, "ends": 2} for port in (1, 2)]
        assert report["devices"] == ports and report["fabrics"]["verbs"] == 4 and report["reasons"] == {}, report
        assert by_sdp(report) > sum(report["bytes"].values()) / 2, report


@pytest.mark.integrity
def test_a_device_goes_with_its_ports(ported):
    """All connections of both go on over TCP, and the device is given back."""
    server = ported.serve()
    client = ported.ask_at(SERVER, "--connections", 2, *ported.busy())
    ported.wait(lambda live: len(live["ports"]) == 4)
    ported.network("remove", "1")
    ported.wait(lambda live: live["qps"] == 0 and live["contexts"] == 2)
    ported.enough()
    ported.every_byte(client)
    client, server = ported.stop(server)
    for report in (client, server):
        assert report["fabrics"]["verbs"] >= 1 and "protocol-violation" not in report["demotions"], report
        assert report["bytes"]["tcp_sent"] > sum(report["bytes"].values()) / 6, report
