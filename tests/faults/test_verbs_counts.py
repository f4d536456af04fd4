"""What a message costs between hosts, counted at the stand-in for RDMA devices and by strace; times decide nothing.

Wanted for a request of 64 bytes and its answer: one message and one post each way, nothing registered, and, where what is
asked for is there, no system call.
"""

import json
import os
import subprocess
from collections import Counter

import pytest

from .harness import SDP, TARGET
from .test_verbs import ADDRESSES, LIBRARY, LIMIT_S, PORT, Hosts, built, pytestmark

PROGRAM = "counted"
WARM, ROUNDS = 300, 200
# How long an answer may take to be there when the program asks for it.
NAP_US = 5000
# Of the stand-in: the holder of its lock, and the wait for it.
STAND_IN = {"getpid", "sched_yield", "nanosleep"}
# What a queue pair that has met needs no more.
ONCE = "RegMr CreateQp CreateCq CreateSrq AllocPd".split()
# Least payload of a full message, in the smallest ring.
MESSAGE = 4096
__all__ = ["built", "pytestmark"]


class Counted(Hosts):
    """Two hosts, one exchange between them."""

    def __init__(self):
        super().__init__()
        self.program = TARGET / "faults" / PROGRAM
        source = os.path.join(os.path.dirname(__file__), "..", "machines", "programs", f"{PROGRAM}.c")
        self.program.parent.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", source, "-o", self.program], check=True)

    def start(self, number, name, *words, fail=()):
        settings = [word for setting in ("fabrics=shm,verbs", *fail) for word in ("--set", setting)]
        argv = ["strace", "-f", "-o", self.path / f"{name}.strace", SDP, "run", "--no-config", *settings,
                "--report", self.path / f"{name}.json", "--", self.program, *words]
        environment = {**os.environ, "SDP_LIBRARY": str(LIBRARY), "SDP_FAKE_NETWORK": str(self.path / "network"),
                       "COUNTED_NAP_US": str(self.nap_us)}
        process = subprocess.Popen(self.inside(number, *argv), env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def run(self, load, count, size, nap_us=0, settings=()):
        """What the stand-in counted between the two words of the client, for each round."""
        self.nap_us = nap_us
        server = self.start(0, "server", "serve", ADDRESSES[0], PORT, fail=settings)
        listens = ["sh", "-c", f"until ss -Hltn sport = :{PORT} | grep -q .; do sleep 0.02; done"]
        subprocess.run(self.inside(0, *listens), check=True, timeout=LIMIT_S)
        client = self.start(1, "client", "ask", ADDRESSES[0], PORT, load, WARM, count, size, fail=settings)
        seen = []
        for word in ("ready", "done"):
            assert client.stdout.readline().strip() == word
            seen.append(json.loads(self.network("totals")))
            client.stdin.write("\n")
            client.stdin.flush()
        assert client.wait(LIMIT_S) == server.wait(LIMIT_S) == 0
        self.reports = [json.loads((self.path / f"{name}.json").read_text()) for name in ("client", "server")]
        before, after = seen
        return {name: (after[name] - before[name]) / count for name in after}

    def calls(self, name):
        """System calls between two rests of the program, for the rounds that count."""
        return self.parts(name, ROUNDS)

    def parts(self, name, count):
        """System calls between two rests of the program, for the last so many; the stand-in's own are left out."""
        lines = (self.path / f"{name}.strace").read_text().splitlines()
        program = next(line.split()[0] for line in reversed(lines) if "clock_nanosleep" in line)
        parts, now = [], Counter()
        for line in lines:
            pid, _, call = line.partition(" ")
            call = call.strip().partition("(")[0]
            if pid != program or call in STAND_IN or not call.isidentifier():
                continue
            if call == "clock_nanosleep":
                parts.append(now)
                now = Counter()
            else:
                now[call] += 1
        return parts[-count:]


@pytest.fixture
def hosts():
    hosts = Counted()
    try:
        yield hosts
    finally:
        hosts.close()


def on_sdp(report):
    """Bytes over the queue pair, each way."""
    return report["bytes"]["sdp_sent"], report["bytes"]["sdp_received"]


def test_a_request_and_its_answer(hosts):
    """One message each way, which its post carries itself; acknowledgements and credit go with the answers."""
    each = hosts.run("requests", ROUNDS, 64, nap_us=NAP_US)
    for report in hosts.reports:
        assert min(on_sdp(report)) >= 64 * ROUNDS, report
    # Where the machine is so slow that an answer is late, credit is told by itself, and requests of no bytes ask for its end.
    assert 2 <= each["inline"] <= each["PostSend"] <= 2.2, each
    assert each["PostReceive"] <= each["PostSend"] + 0.1, each
    # Of the messages that arrive, and of every eighth that is sent.
    assert each["completions"] <= 1.25 * each["PostSend"] + 0.1, each
    assert not any(each[step] for step in ONCE), each
    for name in ("client", "server"):
        calls = hosts.calls(name)
        silent = sum(not part for part in calls)
        # Some answers may be late, and slept for.
        assert len(calls) == ROUNDS and silent > ROUNDS / 2, (name, silent, sum(calls, Counter()))


def test_a_write_is_a_message(hosts):
    """16 KiB each way: one request and one doorbell, one more request where the ring ends, and all of it by the queue pair."""
    each = hosts.run("requests", ROUNDS, 16384)
    for report in hosts.reports:
        assert min(on_sdp(report)) >= 16384 * ROUNDS and not report["demotions"], report
    # With words about room now and then.
    assert 2 <= each["PostSend"] <= 3.5 and each["doorbells"] <= 3, each
    assert not any(each[step] for step in ONCE), each


def test_answers_are_looked_for(hosts):
    """Who is answered soon looks for it a moment before it sleeps, at both ends."""
    hosts.run("requests", 2000, 64, settings=("recv_poll=20000",))
    for report in hosts.reports:
        assert report["waits"]["spun"] > 0, report


def test_none_is_looked_for(hosts):
    """`recv_poll=0`: everybody sleeps at once."""
    hosts.run("requests", ROUNDS, 64, settings=("recv_poll=0",))
    for report in hosts.reports:
        assert report["waits"]["spun"] == 0 and report["waits"]["slept"] > 0, report


def test_bulk(hosts):
    """Writes of 64 KiB: as many messages as their bytes need, and little beside them."""
    size, count = 65536, 50
    each = hosts.run("bulk", count, size)
    client, server = hosts.reports
    by_sdp = on_sdp(client)[0]
    print(json.dumps({"each": each, "client": client["bytes"], "demotions": client["demotions"]}))
    assert by_sdp > 0 and not any(each[step] for step in ONCE), client
    # What went by TCP, for want of credit, needs none.
    data = by_sdp / MESSAGE / count
    # Calls may end with a short message, and each gives credit back at most twice in a window.
    assert each["PostSend"] <= 1.5 * data + 4, (each, data)
    assert each["completions"] <= 1.25 * each["PostSend"] + 1, each
    assert server["bytes"]["sdp_received"] + server["bytes"]["tcp_received"] >= size * count
