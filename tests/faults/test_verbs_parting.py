"""An end that closes with bytes still in its carrier, between two hosts: every byte and the end of the stream arrive.

`SDP_TEST_PLAYS`: how many connections part in each way; 200 for the long run.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from .test_verbs import ADDRESSES, LIMIT_S, PORT, by_sdp, built, hosts, pytestmark

__all__ = ["built", "hosts", "pytestmark"]
PROGRAM = Path(__file__).parent / "programs" / "parting.py"
STREAMS = PROGRAM.with_name("streams.py")
ASKED = PROGRAM.with_name("asked.py")
PLAYS = int(os.environ.get("SDP_TEST_PLAYS", "6"))
WHOLE = 60 * 1024 + 256 * 1024
WAYS = "close", "shutdown", "linger", "exit", "kill"
EAGER = "promote_calls=0", "promote_bytes=0"
# The carrier is paced where bytes leave the client: what it has closed with stays in its kernel for a while.
PACED = "root tbf rate 60mbit burst 16kb limit 1mb".split()


@pytest.mark.integrity
@pytest.mark.parametrize(("how", "settings"), [(how, ()) for how in WAYS] + [("close", EAGER), ("exit", EAGER)],
                         ids=[*WAYS, "close-eager", "exit-eager"])
def test_every_byte_before_the_end(hosts, how, settings):
    """The client parts right behind its last send."""
    hosts.enter(1, "tc", "qdisc", "add", "dev", "wire1", *PACED)
    found = hosts.path / "found"
    server = hosts.start(0, "server", "serve", PORT, PLAYS, found, program=PROGRAM, settings=settings)
    hosts.listens()
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, PLAYS, how, program=PROGRAM, settings=settings)
    limit = 4 * LIMIT_S * (1 + PLAYS // 50)
    _, err = client.communicate(timeout=limit)
    assert client.returncode == 0, err
    _, err = server.communicate(timeout=limit)
    assert server.returncode == 0, err
    # Of a process that was killed nobody knows that it had sent all.
    ends = ("end", "ECONNRESET") if how == "kill" else ("end",)
    came = json.loads(found.read_text())
    lost = [one for one in came if (one["got"], one["right"]) != (WHOLE, True) or one["end"] not in ends]
    assert len(came) == PLAYS and not lost, lost
    server = json.loads((hosts.path / "server.json").read_text())
    assert server["fabrics"]["verbs"] > 0 and by_sdp(server) > 0, server


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["edge,65536", "block,16384"])
@pytest.mark.parametrize("count", [100_000, 300_000, 1_000_000])
def test_connections_that_are_closed_while_others_meet(hosts, count, how):
    """A thread accepts the requests for all connections of its process: none for one that another thread is closing."""
    met = 0
    # On a busy machine the streams may be over before any connection meets.
    for _ in range(1 if count < 1_000_000 else 5):
        server = hosts.start(0, "server", "serve", PORT, 12, count, program=STREAMS)
        hosts.listens()
        client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, 12, count, how, program=STREAMS)
        for process in client, server:
            _, err = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, err) == (0, "")
        met += json.loads((hosts.path / "client.json").read_text())["fabrics"]["verbs"]
        if met:
            return
    assert count < 1_000_000


@pytest.mark.parametrize("how", ["exit", "exec"])
def test_all_carriers_are_kept_at_once(hosts, how):
    """A process that ends behind queue pairs which have died keeps its carriers for what comes: all of them for the time of one,
    counted in looks, of which one carrier takes 20 at least and 400 at most."""
    count, most = 40, 400
    number = hosts.path / "number"
    hosts.start(0, "server", "many", PORT, number, program=PROGRAM)
    hosts.listens()
    traced = hosts.path / "trace"
    before = "strace", "-f", "-o", traced, "-e", "trace=nanosleep,clock_nanosleep"
    client = hosts.start(1, "client", "at-once", ADDRESSES[0], PORT, count, how, hosts.path, program=PROGRAM, before=before)
    hosts.wait(lambda live: live["qps"] == 2 * count)
    (hosts.path / "met").touch()
    hosts.pause("ready")
    # Nothing is acknowledged any more, and the peer says nothing.
    os.kill(int(number.read_text()), signal.SIGSTOP)
    hosts.enter(0, "ip", "route", "add", "blackhole", f"{ADDRESSES[1]}/32")
    hosts.network("road", "cut")
    (hosts.path / "go").touch()
    _, err = client.communicate(timeout=LIMIT_S)
    assert client.returncode == 0, err
    looks = sum("tv_nsec=500000}" in line for line in traced.read_text().splitlines())
    assert 20 <= looks <= most, looks


@pytest.mark.integrity
@pytest.mark.parametrize("settings", [(), EAGER], ids=["default", "eager"])
def test_a_client_that_parts_before_it_answers(hosts, settings):
    """The server has asked for the stream's way back to TCP; the client's first call behind that sends, and its last one parts.
    A shutdown of what there is not is refused, and ends nothing."""
    ways = "close", "shutdown", "refused", "exit", "close"
    server = hosts.start(0, "server", "serve", PORT, len(ways), program=ASKED, settings=settings)
    hosts.listens()
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, *ways, program=ASKED, settings=settings)
    _, err = client.communicate(timeout=LIMIT_S)
    assert (client.returncode, err) == (0, "")
    out, err = server.communicate(timeout=LIMIT_S)
    assert (server.returncode, err) == (0, "")
    assert json.loads(out) == [["the last words of a client", "end"]] * len(ways)
    server = json.loads((hosts.path / "server.json").read_text())
    assert server["fabrics"]["verbs"] >= len(ways) - 1 and server["demotions"]["low-watermark"] > 0, server


@pytest.mark.integrity
@pytest.mark.parametrize("settings", [(), EAGER], ids=["default", "eager"])
def test_a_client_that_parts_while_its_server_asks(hosts, settings):
    """The end of the client's stream crosses the server's wish to leave the queue pair: nobody answers that. What is unread in
    the ring is the server's all the same."""
    plays = 40
    server = hosts.start(0, "server", "serve", PORT, plays, program=ASKED, settings=settings)
    hosts.listens()
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, *["at-once"] * plays, program=ASKED, settings=settings)
    _, err = client.communicate(timeout=LIMIT_S)
    assert (client.returncode, err) == (0, "")
    out, err = server.communicate(timeout=LIMIT_S)
    assert (server.returncode, err) == (0, "")
    assert json.loads(out) == [["the last words of a client", "end"]] * plays
    server = json.loads((hosts.path / "server.json").read_text())
    assert server["fabrics"]["verbs"] > 0 and sum(server["demotions"].values()) > 0, server
