"""Two versions of the library at the ends of a connection between two network namespaces, with the stand-in for RDMA devices: the
stream stays on TCP, with the reason, and asks seldom again."""

import json

import pytest

from .test_verbs import Hosts, built, by_sdp, hosts, pytestmark

__all__ = ["Hosts", "built", "hosts", "pytestmark"]
# Offsets in private data: the Hello's version is behind a header of 16 bytes, the proof's first byte behind a Hello of 32
# bytes or an acknowledgement of 24.
HELLO, OF_REQUEST, OF_REPLY = 16, 32, 24
# Major version in the high half; this version's are 2 and 2. Version 1 of the proof is of ends without rings.
OTHER_HELLO, SAME_MAJOR, OTHER_PROOF = 0x32, 0x2F, 0x10
REFUSALS = {
    "request-hello": ("server", HELLO, OTHER_HELLO),
    "request-proof": ("server", OF_REQUEST, OTHER_PROOF),
    "reply-hello": ("client", HELLO, OTHER_HELLO),
    "reply-proof": ("client", OF_REPLY, OTHER_PROOF),
}


def exchange(hosts, end, offset, value):
    """Every byte arrives, between an end of this version and one that says something else; both reports, and how many queue
    pairs were made in the second half."""
    says = {"says": f"{offset}:{value}"}
    server = hosts.serve(**(says if end == "server" else {}))
    options = "--rounds", 300, "--connections", 1, "--pace", 0.005, "--pause-file", hosts.path / "pause"
    client = hosts.ask(*options, **(says if end == "client" else {}))
    pause = hosts.pause()
    before = json.loads(hosts.network("totals"))
    pause.unlink()
    hosts.every_byte(client)
    after = json.loads(hosts.network("totals"))
    return *hosts.stop(server), after["CreateQp"] - before["CreateQp"]


@pytest.mark.integrity
@pytest.mark.parametrize("refusal", REFUSALS)
def test_an_end_of_another_version(hosts, refusal):
    """Who hears of it says why; where the request is refused both do, since the refusal says so."""
    end, offset, value = REFUSALS[refusal]
    client, server, made = exchange(hosts, end, offset, value)
    assert by_sdp(client) == by_sdp(server) == 0, (client, server)
    assert server["reasons"] == {"version-mismatch": 1}, server
    if end == "server":
        assert client["reasons"] == {"version-mismatch": 1}, client
    for report in (client, server):
        assert report["fabrics"]["shm"] == 0 and "protocol-violation" not in report["demotions"], report
    # Not one for each of two hundred rounds; the first attempts may come so late.
    assert made <= 20, made
    hosts.leave_nothing()


@pytest.mark.integrity
def test_a_later_version_of_the_same_kind(hosts):
    """The minor version never ends an attempt."""
    client, server, _ = exchange(hosts, "server", HELLO, SAME_MAJOR)
    assert client["fabrics"]["verbs"] == server["fabrics"]["verbs"] == 1 and by_sdp(client) > 0, (client, server)
