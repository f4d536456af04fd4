"""Devices without shared receive queues, at both ends or at one: each queue pair has a receive queue of its own, and all else is
as with others. The devices are stand-ins (`test_verbs.py`, whose tests these are once more).
"""

import pytest

from .test_verbs import (
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


def play(hosts, shared):
    """A stream whose ends have so many shared receive queues together; both reports."""
    server = hosts.serve()
    client = hosts.ask("--rounds", 400, "--pace", 0.02, "--pace-until", hosts.path / "enough")
    hosts.wait(lambda live: live["qps"] == 2)
    assert hosts.live()["srqs"] == shared
    (hosts.path / "enough").touch()
    hosts.every_byte(client)
    reports = hosts.stop(server)
    for report in reports:
        assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > sum(report["bytes"].values()) / 2, report
    return reports


@pytest.mark.integrity
def test_one_end_has_none(unlike):
    """The other one has. What each end posts to is its own affair."""
    play(unlike, 1)


@pytest.mark.integrity
def test_no_end_has_any(hosts):
    """Receives are posted, and to no shared queue."""
    for report in play(hosts, 0):
        assert not report["demotions"], report
