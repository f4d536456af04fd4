"""Connections between hosts: each call says what it says over TCP, behind a reset and of bytes that nobody has read.

The devices are stand-ins (`test_verbs.py`).
"""

import json
from pathlib import Path

import pytest

from .test_verbs import ADDRESSES, LIMIT_S, PORT, built, by_sdp, hosts, pytestmark

__all__ = ["built", "hosts", "pytestmark"]

PROGRAM = Path(__file__).resolve().parent / "programs" / "told.py"
MEETS = PROGRAM.with_name("meets_asleep.py")
CLOSING = PROGRAM.with_name("last_answer.py")
STREAMS = PROGRAM.with_name("streams.py")
FOR_ROOM = PROGRAM.with_name("for_room.py")
REQUESTS, MUCH = 300, 8 << 20
CLOSES = 100
CALLS = [
    "recv recv poll send send",
    "poll send send recv",
    "epoll send recv poll",
    "error recv send",
    "poll recv poll recv poll send",
    "epoll poll error epoll poll send recv",
    "count recv recv",
    "peek 1 recv peek",
]


def said(hosts, fabrics, size):
    """What the calls of the client say, and both reports."""
    how = {"program": PROGRAM, "settings": (f"fabrics={fabrics}",)}
    server = hosts.start(0, "server", "serve", PORT, size, len(CALLS), **how)
    hosts.listens()
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, size, *CALLS, **how)
    lines, failed = client.communicate(timeout=LIMIT_S)
    assert (client.returncode, failed) == (0, "")
    assert (server.wait(LIMIT_S), server.stderr.read()) == (0, "")
    return lines, [json.loads((hosts.path / f"{name}.json").read_text()) for name in ("client", "server")]


@pytest.mark.parametrize("size", [0, 5, 1500])
def test_each_call_says_what_it_says_over_tcp(hosts, size):
    by_tcp, reports = said(hosts, "shm", size)
    assert all(by_sdp(report) == 0 for report in reports), reports
    by_queue_pair, reports = said(hosts, "shm,verbs", size)
    assert all(by_sdp(report) > len(CALLS) * 50 for report in reports), reports
    assert by_queue_pair == by_tcp


@pytest.mark.parametrize("size", [1000, 200_000])
def test_a_program_that_waits_for_fionread(hosts, size):
    """More than the peer has credit for comes by both roads."""
    server = hosts.start(0, "server", "wait", PORT, size, program=PROGRAM)
    hosts.listens()
    client = hosts.start(1, "client", "push", ADDRESSES[0], PORT, size, program=PROGRAM)
    out, failed = server.communicate(timeout=LIMIT_S)
    assert (server.returncode, out, failed) == (0, f"{size}\n{size}\n", "")
    assert client.wait(LIMIT_S) == 0
    for name in ("server", "client"):
        report = json.loads((hosts.path / f"{name}.json").read_text())
        assert by_sdp(report) > 500, report


@pytest.mark.parametrize("wait", ["forever", "0.5", "0"])
@pytest.mark.parametrize("end", ["server", "client"])
def test_a_wait_during_which_a_connection_meets(hosts, end, wait):
    """The marker by which the other end proves itself comes to the carrier: it is nothing to read."""
    server = hosts.start(0, "server", "serve", PORT, wait if end == "server" else "no", program=MEETS)
    hosts.listens()
    words = ADDRESSES[0], PORT, wait if end == "client" else "no"
    hosts.every_byte(hosts.start(1, "client", "ask", *words, program=MEETS))
    hosts.every_byte(server)
    for name in ("server", "client"):
        report = json.loads((hosts.path / f"{name}.json").read_text())
        assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 50, report


def test_a_client_that_closes_behind_the_last_answer(hosts):
    """The end of its queue pair, which the server may hear of first, does not take the end of the stream away."""
    server = hosts.start(0, "server", "serve", PORT, CLOSES, program=CLOSING)
    hosts.listens()
    hosts.every_byte(hosts.start(1, "client", "ask", ADDRESSES[0], PORT, CLOSES, program=CLOSING))
    assert (server.wait(LIMIT_S), server.stderr.read()) == (0, "")
    for name in ("server", "client"):
        report = json.loads((hosts.path / f"{name}.json").read_text())
        assert report["fabrics"]["verbs"] > CLOSES // 2 and by_sdp(report) > CLOSES, report


def pushed(hosts, how, count, pause_s=0):
    """What the sender says, and its report."""
    server = hosts.start(0, "server", "serve", PORT, REQUESTS, count, pause_s, program=FOR_ROOM)
    hosts.listens()
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, REQUESTS, count, how, program=FOR_ROOM)
    out, failed = client.communicate(timeout=LIMIT_S)
    assert (client.returncode, failed) == (0, "")
    assert (server.wait(LIMIT_S), server.stderr.read()) == (0, "")
    return json.loads(out), json.loads((hosts.path / "client.json").read_text())


@pytest.mark.parametrize("how", ["poll", "select", "level", "edge", "asyncio"])
def test_a_sender_that_never_blocks_is_told_of_room(hosts, how):
    """It gets EAGAIN where the ring at the other end is full, and its bytes do not go by TCP for that."""
    counts, report = pushed(hosts, how, MUCH, pause_s=0.002)
    # Only if the reader stood still for 20 ms.
    assert report["demotions"].get("credit", 0) <= 2, json.dumps(report)
    assert report["bytes"]["sdp_sent"] > MUCH // 2, report
    assert report["messages"]["ring_full"] > 0, report
    if counts:
        # A wait that is over finds room: no loop between both.
        assert 0 < counts["refused"] == counts["woken"] - 1 <= 2 * MUCH // (64 * 1024), (counts, report)


@pytest.mark.parametrize("how", ["level", "edge", "oneshot"])
def test_a_sender_that_never_blocks_and_a_reader_that_rests(hosts, how):
    """Bytes of a reader that takes none go by TCP, as far as the kernel takes them."""
    counts, report = pushed(hosts, how, MUCH, pause_s=0.1)
    assert report["bytes"]["sdp_sent"] > 0, report
    assert counts["refused"] < 1000, (counts, report)


def test_a_stream_to_a_peer_that_only_sends(hosts):
    """It fills the peer's ring, and goes by TCP then. The peer's own stream, which is read, stays on the queue pair."""
    count, sent = 3 << 20, 8 << 20
    server = hosts.start(0, "server", "deaf", PORT, count, sent, program=STREAMS)
    hosts.listens()
    client = hosts.start(1, "client", "fill", ADDRESSES[0], PORT, count, sent, program=STREAMS)
    for process in client, server:
        _, failed = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, failed) == (0, "")
    server, client = (json.loads((hosts.path / f"{name}.json").read_text()) for name in ("server", "client"))
    assert server["bytes"]["sdp_sent"] > sent // 2, server
    # What was posted fits into the ring; switches in vain would be 20 demotions. Where the peer begins to read
    # on a busy machine there may be some more.
    assert client["demotions"].get("credit", 0) <= 8, client
