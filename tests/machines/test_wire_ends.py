"""What is at the other end of a wire, and what becomes of it: a device that comes back, a machine that falls silent, one
without a device, one without the library."""

import json
import os
import shlex
from pathlib import Path

import pytest

from machines.guest import Pair
from machines.shown import EVENT_S, Shown, goes_on, has_none, is_on_queue_pair
from machines.test_between import Exchange, equal_sums
from machines.test_programs import report

IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
PARTING = Path(__file__).parent.parent / "faults" / "programs" / "parting.py"
# Bytes of each of its connections.
PARTED = 60 * 1024 + 256 * 1024
SURVIVOR = Path(__file__).parent / "programs" / "survivor.py"
PORT = 7090
FILE = "/tmp/silent"
# The server loses its device, or the client.
MACHINES = ("a", "b") if IS_WHOLE else ("a",)
ETIMEDOUT, ENETUNREACH = 110, 101
# The machine hears nothing, and says nothing.
SILENCE = """
table inet silence {
 chain in { type filter hook input priority -300; iifname eth0 drop; }
 chain out { type filter hook output priority -300; oifname eth0 drop; }
}
"""
HAS_NONE = "for i in $(seq 100); do rdma resource show qp | grep -q 'type RC' || break; sleep 0.1; done; [ $i -lt 100 ]"
VERBS = ("--set", "fabrics=shm,verbs")
SHM = ("--set", "fabrics=shm")


def appears(guest, file, limit_s=90):
    """Waits for a file in a guest."""
    guest.run(f"for i in $(seq {limit_s * 20}); do [ -e {file} ] && exit 0; sleep 0.05; done; exit 1", 2 * limit_s)


@pytest.mark.integrity
@pytest.mark.parametrize("machine", MACHINES)
def test_the_device_comes_back(pair, ladder, machine):
    """It is taken away under load: the driver, which waits for whoever has it open, is not held up. Then it is away while the
    process looks for it; when it is back, the connection has a queue pair on it again, before it ends."""
    exchange = Exchange(pair, ladder)
    guest = getattr(pair, machine)
    asked = exchange.start_open()
    try:
        exchange.until(is_on_queue_pair, asked)
        guest.run("rdma link delete rxe0; sleep 1.5", EVENT_S)
        try:
            gone = exchange.until(has_none, asked)
        finally:
            guest.add_device()
        exchange.until(lambda end: is_on_queue_pair(end) and goes_on(end, gone, "sdp"), asked)
    finally:
        exchange.enough()
    done = asked.wait(EVENT_S)
    assert done.status == 0 and done.out == b"every byte\n", done
    client, server = report(pair.b, "exchange-client"), exchange.stop()
    print(json.dumps([client, server]))
    equal_sums(client["bytes"], server["bytes"])
    for end in (client, server):
        assert end["fabrics"]["verbs"] == 1, end
        assert end["demotions"].get("lane-lost", 0) >= 1, end
        # Both halves got onto the queue pair, and again.
        assert end["switches"]["promoted"] >= 4, end


@pytest.mark.integrity
def test_a_client_parts(pair, ladder):
    """Each connection's client closes right behind its last send, and its server reads slowly: all arrives, and the end.
    `SDP_TEST_PLAYS` connections, 20 in the long run."""
    run = f"{ladder.artifacts.sdp} run --no-config --set fabrics=shm,verbs --report /tmp/parting-%s.json -- "
    run += f"/usr/bin/python3 {PARTING} "
    plays = int(os.environ.get("SDP_TEST_PLAYS", "4"))
    asked = pair.a.start(run % "server" + f"serve {PORT} {plays} /tmp/parted", user="games")
    pair.a.wait_listening(PORT)
    client = pair.b.start(run % "client" + f"ask {pair.a.address} {PORT} {plays} close 10", user="nobody")
    for program in (client, asked):
        done = program.wait(EVENT_S + 30 * plays)
        assert done.status == 0, done
    came = json.loads(pair.a.run("cat /tmp/parted; rm /tmp/parted").out)
    end = report(pair.a, "parting-server")
    print(json.dumps([came, end]))
    assert [(one["got"], one["right"], one["end"]) for one in came] == [(PARTED, True, "end")] * plays, came
    assert end["fabrics"]["verbs"] > 0 and end["bytes"]["sdp_received"] > 0, end


def survive(pair, ladder, how, silence):
    """What a client on `b` is told when `silence` makes machine `a` fall silent; nothing is left of its queue pair."""
    run = f"{ladder.artifacts.sdp} run --no-config --set fabrics=shm,verbs --report /tmp/survivor-%s.json -- "
    run += f"/usr/bin/python3 {SURVIVOR} "
    pair.a.start(run % "server" + f"serve {PORT}", user="games")
    pair.a.wait_listening(PORT)
    pair.b.run(f"rm -f {FILE} {FILE}.met {FILE}.closed")
    asked = pair.b.start(run % "client" + f"ask {pair.a.address} {PORT} {how} {FILE}", user="nobody")
    Shown(pair, ladder.artifacts.sdp).until(is_on_queue_pair, asked)
    pair.b.run(f": >{FILE}.met; chmod 644 {FILE}.met")
    appears(pair.b, FILE)
    silence(pair.a)
    appears(pair.b, FILE + ".closed")
    pair.b.run(HAS_NONE)
    pair.b.run(f"rm {FILE}")
    done = asked.wait()
    assert done.status == 0, done
    told, end = json.loads(done.out), report(pair.b, "survivor-client")
    print(json.dumps([told, end]))
    assert end["fabrics"]["verbs"] == 1, end
    assert told["ended"] == ETIMEDOUT, told
    # It slept meanwhile.
    assert told["cpu"] < told["waited"] / 2, told


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["talk", "listen"])
def test_a_machine_falls_silent(pair, ladder, how):
    """The survivor is told what TCP tells, in the time that TCP_USER_TIMEOUT or the keepalive gives. (QEMU is not stopped: the
    other guest's network card would keep packets of soft-RoCE, whose driver fails if they outlive their queue pair.)"""
    try:
        survive(pair, ladder, how, lambda guest: guest.run(f"nft {shlex.quote(SILENCE)}"))
    finally:
        pair.a.run("nft delete table inet silence", ok=(0, 1))
        for guest in (pair.a, pair.b):
            guest.run("pkill -KILL -f survivor.py", ok=(0, 1))


if IS_WHOLE:

    def test_a_machine_is_killed(kernel, ladder):
        """A pair of its own, one of which loses its power in the middle of an exchange."""
        machines = Pair(kernel)
        try:
            machines.wait_up()
            survive(machines, ladder, "talk", lambda guest: guest.kill())
        finally:
            machines.close()


@pytest.mark.integrity
def test_a_peer_without_a_device(pair, ladder):
    """Plain TCP, for a reason that the one without says; every byte is counted at both ends."""
    exchange = Exchange(pair, ladder)
    pair.b.run("rdma link delete rxe0")
    try:
        client = exchange.ask("--rounds", 60)
    finally:
        pair.b.add_device()
    server = exchange.stop()
    print(json.dumps([client, server]))
    equal_sums(client["bytes"], server["bytes"])
    for end in (client, server):
        assert end["bytes"]["sdp_sent"] + end["bytes"]["sdp_received"] == 0, end
        assert end["bytes"]["tcp_sent"] > 20_000 and end["fabrics"]["verbs"] == 0, end
    assert client["reasons"].get("no-device") == 1, client


# Fabrics, and rules of the client; whether the server has the library; which lane, or what `connect` is told.
STRICT = {
    "verbs": (VERBS, "use sdp client * *:*", True, "sdp"),
    "no fabric": (SHM, "use sdp client * *:*", True, ENETUNREACH),
    "match": (SHM, "match destination *:*", True, ENETUNREACH),
    # Nothing is known of an end on another host before the two meet.
    "bare peer": (VERBS, "use sdp client * *:*", False, "tcp"),
    "both": (SHM, "use both client * *:*", False, "tcp"),
}


@pytest.mark.parametrize("case", STRICT)
def test_strict_clients(pair, ladder, case):
    """SDP or nothing, towards another machine; `both` refuses nobody."""
    fabrics, rule, has_library, expected = STRICT[case]
    exchange = Exchange(pair, ladder)
    if not has_library:
        exchange.stop()
        words = ["/usr/bin/python3", Path(__file__).parent / "programs" / "exchange.py", "serve", 7070]
        exchange.server = pair.a.start(words, user="games")
        pair.a.wait_listening(7070)
    run = [ladder.artifacts.sdp, "run", "--no-config", *fabrics, "--rule", rule, "--report", "/tmp/strict.json", "--"]
    run += ["/usr/bin/python3", Path(__file__).parent / "programs" / "exchange.py", "ask", pair.a.address, 7070, "--rounds", 60]
    done = pair.b.start(run, user="nobody").wait(60)
    pair.a.run("pkill -TERM -f 'exchange.py serve'")
    exchange.server.wait()
    found = report(pair.b, "strict")
    print(case, done.status, json.dumps(found))
    if expected == ENETUNREACH:
        assert done.status != 0 and f"OSError({ENETUNREACH}, " in done.err.decode(), done
        return
    assert done.status == 0 and done.out == b"every byte\n", done
    moved = found["bytes"]
    assert (moved["sdp_sent"] > 0) == (expected == "sdp"), found
