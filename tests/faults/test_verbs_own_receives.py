"""Devices without shared receive queues, at both ends or at one: each queue pair has a receive queue of its own everywhere, and all
is as with others. The devices are stand-ins (`test_verbs.py`, whose tests these are once more).
"""

import json
import os
import subprocess

import pytest

from .test_verbs import (
    DOCTOR,
    EIO,
    LIMIT_S,
    Hosts,
    built,
    by_sdp,
    pytestmark,
    test_a_client_is_killed,
    test_every_byte,
    test_many_connections_in_little_memory,
    test_queue_pairs_that_break,
    test_the_device_goes_and_comes_back,
)

__all__ = [
    "built",
    "pytestmark",
    "test_a_client_is_killed",
    "test_every_byte",
    "test_many_connections_in_little_memory",
    "test_queue_pairs_that_break",
    "test_the_device_goes_and_comes_back",
]


def hosts_without(*devices):
    hosts = Hosts()
    hosts.without = devices
    try:
        for device in devices:
            hosts.network("own", device)
        yield hosts
    finally:
        hosts.close()


@pytest.fixture
def hosts():
    yield from hosts_without("0", "1")


@pytest.fixture(params=["0", "1"], ids=["server", "client"])
def unlike(request):
    yield from hosts_without(request.param)


def play(hosts):
    """A stream between ends that use no shared receive queue; both reports."""
    server = hosts.serve()
    client = hosts.ask("--rounds", 400, "--pace", 0.02, "--pace-until", hosts.path / "enough")
    hosts.wait(lambda live: live["qps"] == 2)
    assert hosts.live()["srqs"] == 0
    (hosts.path / "enough").touch()
    hosts.every_byte(client)
    reports = hosts.stop(server)
    for report in reports:
        assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > sum(report["bytes"].values()) / 2, report
    return reports


@pytest.mark.integrity
def test_one_end_has_none(unlike):
    """The other one has."""
    play(unlike)


@pytest.mark.integrity
def test_no_end_has_any(hosts):
    """Receives are posted, and to no shared queue."""
    for report in play(hosts):
        assert not report["demotions"], report


# The devices in the kernel's files, by the GUIDs that the stand-in gives them, for the command alone.
SHOWN = """
mount -t tmpfs none /sys/class
for number in 0 1; do
    folder=/sys/class/infiniband/fake$number
    mkdir -p $folder/ports
    printf '0%d00:0000:0000:4efa\\n' $((number + 1)) >$folder/node_guid
done
exec "$@"
"""


def told(hosts, *words, fail=()):
    """What a tool prints on a machine with both devices."""
    environment = {**os.environ, "SDP_FAKE_NETWORK": str(hosts.path / "network"), "SDP_FAKE_FAIL": ",".join(fail)}
    argv = ["unshare", "--mount", "sh", "-ec", SHOWN, "sh", DOCTOR, *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False).stdout


def test_tools_tell_which_have_them(unlike):
    """As the library finds out; a device that cannot be opened is said to be unknown, and nothing is left open."""
    has_none = unlike.without[0]
    form = json.loads(told(unlike, "devices", "--json"))
    shared = {device["name"]: device["shared_receive_queue"] for device in form["devices"]}
    assert shared == {f"fake{number}": str(number) != has_none for number in range(2)}, form
    text = told(unlike, "devices")
    lines = [line.strip() for line in text.splitlines() if "shared receive queue" in line]
    words = {True: "shared receive queue: yes", False: "shared receive queue: no, one for each connection"}
    assert lines == [words[shared[name]] for name in sorted(shared)], text
    found = [f for f in json.loads(told(unlike, "doctor", "--json"))["findings"] if f["check"] == "srq"]
    assert [f["grade"] for f in found] == ["ok", "ok"], found
    assert sum(f"fake{has_none} has no shared receive queue" in f["what"] for f in found) == 1, found
    assert unlike.live()["contexts"] == unlike.live()["srqs"] == 0
    broken = [f"OpenDevice:1:1:{EIO}"]
    first, second = json.loads(told(unlike, "devices", "--json", fail=broken))["devices"]
    assert first["shared_receive_queue"] is None and second["shared_receive_queue"] is shared["fake1"]
    assert "shared receive queue: not known (ibv_open_device: " in told(unlike, "devices", fail=broken)
    found = [f for f in json.loads(told(unlike, "doctor", "--json", fail=broken))["findings"] if f["check"] == "srq"]
    assert [f["grade"] for f in found] == ["note", "ok"] and "fake0 cannot be asked" in found[0]["what"], found
