"""Queue pairs between two machines: programs that check every byte, and what happens when the queue pair goes away."""

import json
import os
from pathlib import Path

import pytest

from machines.shown import EVENT_S, Shown, goes_on, has_none, is_on_queue_pair, moved
from machines.test_programs import report

PROGRAM = Path(__file__).parent / "programs" / "exchange.py"
PORT = 7070
SETTINGS = ("--set", "fabrics=shm,verbs")
# Each takes ten seconds: the gate plays one of a kind.
IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
FORMS = {"one": ((), 1), "asyncio": (("--async",), 4)} | ({"threads": ((), 4)} if IS_WHOLE else {})


ENOUGH = "/tmp/enough"
HELD = "/tmp/held"


class Exchange(Shown):
    """A server on machine `a`, and its clients on `b`, of different users."""

    def __init__(self, pair, ladder, *options):
        super().__init__(pair, ladder.artifacts.sdp)
        self.server = pair.a.start(self.command("exchange-server", "serve", PORT, *options), user="games")
        pair.a.wait_listening(PORT)

    def command(self, name, *words):
        run = [self.sdp, "run", "--no-config", *SETTINGS, "--report", f"/tmp/{name}.json", "--"]
        return " ".join(map(str, [*run, "/usr/bin/python3", PROGRAM, *words]))

    def start(self, *options, address=None):
        words = ["ask", address or self.pair.a.address, PORT, *options]
        return self.pair.b.start(self.command("exchange-client", *words), user="nobody")

    def start_open(self, *options):
        """A client that asks at a pace until [`Exchange.enough`], so that what is waited for meanwhile may take its time."""
        self.pair.b.run(f"rm -f {ENOUGH} {HELD}")
        return self.start("--rounds", 30, "--pace", 0.04, "--until", ENOUGH, "--hold", HELD, *options)

    def hold(self, asked):
        """The client of [`Exchange.start_open`] asks nothing from here on, and has all its answers."""
        self.pair.b.run(f": >{HELD}; chmod 644 {HELD}")
        before = []

        def rests(shown):
            now = [moved(end) for end in shown]
            last, before[:] = list(before), now
            return now == last

        self.until_all(rests, asked)

    def let_go(self):
        """It goes on."""
        self.pair.b.run(f"rm -f {HELD}")

    def enough(self):
        """The client of [`Exchange.start_open`] ends its stream."""
        self.pair.b.run(f": >{ENOUGH}; chmod 644 {ENOUGH}")

    def ask(self, *options, address=None):
        done = self.start(*options, address=address).wait(120)
        assert done.status == 0 and done.out == b"every byte\n", done
        return report(self.pair.b, "exchange-client")

    def stop(self):
        """The server's report."""
        self.pair.a.run("pkill -TERM -f 'exchange.py serve'")
        self.server.wait()
        return report(self.pair.a, "exchange-server")


def equal_sums(one, other):
    """What one end sent the other received. Of each lane alone that need not hold: what was under way when a queue pair
    ended has come by TCP, and was sent by both."""
    for a, b in ((one, other), (other, one)):
        assert a["sdp_sent"] + a["tcp_sent"] == b["sdp_received"] + b["tcp_received"], (a, b)


def check(client, server, connections, share=0.5):
    """Both ends used queue pairs, and agree on what went where."""
    print(json.dumps([client, server]))
    assert client["fabrics"]["verbs"] == server["fabrics"]["verbs"] == connections, (client, server)
    equal_sums(client["bytes"], server["bytes"])
    for end in (client, server):
        moved = end["bytes"]
        by_sdp = moved["sdp_sent"] + moved["sdp_received"]
        assert by_sdp >= share * (by_sdp + moved["tcp_sent"] + moved["tcp_received"]), end


@pytest.mark.integrity
@pytest.mark.parametrize("form", FORMS)
def test_every_byte(pair, ladder, form):
    """Requests and answers of up to 2000 bytes, blocking and through epoll; each end closes its half by itself."""
    options, connections = FORMS[form]
    exchange = Exchange(pair, ladder, *options)
    client = exchange.ask("--connections", connections, "--rounds", 200, *options)
    check(client, exchange.stop(), connections)


@pytest.mark.integrity
def test_more_than_there_is_credit_for(pair, ladder):
    """Answers of up to 200 000 bytes: what has no receive buffer promised goes by the carrier."""
    exchange = Exchange(pair, ladder)
    client = exchange.ask("--connections", 2, "--rounds", 20, "--size", 200_000)
    check(client, exchange.stop(), 2, share=0.01)


@pytest.mark.integrity
def test_a_fork_for_each_connection(pair, ladder):
    """The child that serves a connection has a device of its own."""
    exchange = Exchange(pair, ladder, "--fork")
    client = exchange.ask("--connections", 2, "--rounds", 250)
    check(client, exchange.stop(), 2)


@pytest.mark.integrity
@pytest.mark.parametrize("machine", ["a", "b"] if IS_WHOLE else ["a"])
def test_the_device_goes_away(pair, ladder, machine):
    """`rdma link delete` in the middle: both directions go on over TCP, and not a byte is missing."""
    exchange = Exchange(pair, ladder)
    asked = exchange.start_open()
    guest = getattr(pair, machine)
    try:
        exchange.until(is_on_queue_pair, asked)
        # The driver waits until the programs that use the device have let it go.
        guest.run("rdma link delete rxe0", EVENT_S)
        try:
            gone = exchange.until(has_none, asked)
            exchange.until(lambda end: goes_on(end, gone, "tcp"), asked)
            exchange.enough()
            done = asked.wait(EVENT_S)
            assert done.status == 0 and done.out == b"every byte\n", done
        finally:
            guest.add_device()
    finally:
        exchange.enough()
    client, server = report(pair.b, "exchange-client"), exchange.stop()
    print(json.dumps([client, server]))
    for end in (client, server):
        assert end["fabrics"]["verbs"] == 1, end
    # The other end may have heard of it by a goodbye, or by the marker.
    lost = {"a": server, "b": client}[machine]
    assert lost["demotions"].get("lane-lost", 0) >= 1, lost
    equal_sums(client["bytes"], server["bytes"])


SWITCHES = """
sum() { cat /proc/$1/task/*/status | awk '/voluntary_ctxt/ {n += $2} END {print n}'; }
P=$(pgrep -x python3 | head -1); before=$(sum $P); sleep 3; echo $(($(sum $P) - before))
"""


@pytest.mark.parametrize("options", [(), ("--async",)] if IS_WHOLE else [("--async",)])
def test_idle_is_idle(pair, ladder, options):
    """A server whose connection has met, and has nothing to do, wakes for nothing."""
    exchange = Exchange(pair, ladder, *options)
    asked = exchange.start_open(*options)
    try:
        exchange.until(is_on_queue_pair, asked)
        exchange.hold(asked)
        woken = int(pair.a.run(SWITCHES).text)
    finally:
        exchange.let_go()
        exchange.enough()
    assert asked.wait(EVENT_S).status == 0
    server = exchange.stop()
    assert server["fabrics"]["verbs"] == 1, server
    assert woken <= 12, woken
