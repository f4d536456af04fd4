"""Addresses of the other kinds: a connection by IPv6 between two network namespaces uses the device that has its address, also
where that is of one link only, or stands for an address of IPv4. The devices are stand-ins (`test_verbs.py`).
"""

import pytest

from .test_verbs import ADDRESSES, PORT, Hosts, built, by_sdp, pytestmark

__all__ = ["built", "pytestmark"]
GLOBAL, LINK_LOCAL = ("fd00:9::1", "fd00:9::2"), ("fe80::9:1", "fe80::9:2")


class Numbered(Hosts):
    """Two hosts whose wire has addresses of IPv6, too."""

    def __init__(self):
        super().__init__()
        for addresses in (GLOBAL, LINK_LOCAL):
            for number, address in enumerate(addresses):
                self.enter(number, "ip", "addr", "add", f"{address}/64", "dev", f"wire{number}", "nodad")
                self.network("add", address)


@pytest.fixture
def hosts():
    hosts = Numbered()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.mark.integrity
@pytest.mark.parametrize("options", [(), ("--async",)], ids=["threads", "asyncio"])
@pytest.mark.parametrize(
    ("address", "family"),
    [(GLOBAL[0], 6), (f"{LINK_LOCAL[0]}%wire1", 6), (f"::ffff:{ADDRESSES[0]}", 4)],
    ids=["global", "link-local", "mapped"],
)
def test_every_byte_by_ipv6(hosts, address, family, options):
    server = hosts.serve("--family", family, *options)
    client = hosts.start(1, "client", "ask", address, PORT, "--rounds", 120, "--connections", 2, *options)
    hosts.every_byte(client)
    for report in hosts.stop(server):
        assert report["fabrics"]["verbs"] == 2 and report["reasons"] == {}, report
        assert by_sdp(report) > sum(report["bytes"].values()) / 2, report
