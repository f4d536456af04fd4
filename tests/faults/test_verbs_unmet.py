"""A connection to another host whose other end has no library: its calls cost what they cost without the library, but for a
few attempts to meet that come at growing distances, and a look now and then at what the connection manager has to tell.

Counted by strace and by the stand-in for RDMA devices (`test_verbs.py`); times decide nothing. How many looks and attempts
there may be depends on how long a run took, not on how many calls were made.
"""

import json
import math
import os
import subprocess
import time
from collections import Counter

import pytest

from .harness import SDP
from .test_verbs import ADDRESSES, LIBRARY, LIMIT_S, PORT, PROGRAM, Hosts, built, pytestmark
from .test_verbs_counts import STAND_IN, Counted

__all__ = ["built", "pytestmark"]
ROUNDS, NAP_US = 2000, 300
# Attempts at most 5 ms apart before their distance doubles, and the distance that looks come to while there is nothing.
EAGER, FIRST_S, LOOK_S = 10, 0.005, 0.1
# An attempt is some ten events, about as many looks until their distance has grown again, and at an end that
# asks the memory of a ring, which is mapped and unmapped.
EACH = 36
ATTEMPTS = {"ask": "Listen", "serve": "ResolveAddress"}
END = {"ask": "client", "serve": "server"}
PROGRAMS = PROGRAM.parent
# Instructions of a call on a connection that has not met, at most, to those of one on TCP: both without optimisation.
MORE = 1.25
# Runs in which a call without a look is sought, at most.
RUNS = 4


class Lonely(Counted):
    """One end has the library, and is traced; the other is plain."""

    end = "ask"

    def start(self, number, name, *words, fail=()):
        # It rests where the traced end does not: so that one has something to sleep for.
        environment = {**os.environ, "COUNTED_NAP_US": str(self.nap_us or NAP_US)}
        if words[0] == self.end:
            return super().start(number, name, *words, fail=fail)
        process = subprocess.Popen(self.inside(number, self.program, *words), env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def measure(self, end, fabrics, nap_us=NAP_US):
        """System calls of the rounds that count, what the stand-in counted meanwhile, the report, and how long all took."""
        self.end, self.nap_us = end, nap_us
        settings = (f"fabrics={fabrics}",)
        begun = time.monotonic()
        server = self.start(0, "server", "serve", ADDRESSES[0], PORT, fail=settings)
        self.listens()
        client = self.start(1, "client", "ask", ADDRESSES[0], PORT, "requests", 300, ROUNDS, 64, fail=settings)
        seen = []
        for word in ("ready", "done"):
            assert client.stdout.readline().strip() == word
            seen.append(Counter(json.loads(self.network("totals"))))
            client.stdin.write("\n")
            client.stdin.flush()
        assert client.wait(LIMIT_S) == server.wait(LIMIT_S) == 0
        took = time.monotonic() - begun
        report = json.loads((self.path / f"{END[end]}.json").read_text())
        assert report["bytes"]["sdp_sent"] == report["bytes"]["sdp_received"] == 0, report
        return seen, report, took

    def system_calls(self, end):
        # Before the first rest are the rounds that do not count.
        return sum(self.parts(END[end], ROUNDS - 1), Counter())

    def all_calls(self, end):
        """System calls from the first send to the last one; the stand-in's own are left out."""
        lines = (self.path / f"{END[end]}.strace").read_text().splitlines()
        names = [line.partition(" ")[2].strip().partition("(")[0] for line in lines]
        first, last = names.index("sendto"), len(names) - names[::-1].index("sendto")
        return Counter(name for name in names[first:last] if name.isidentifier() and name not in STAND_IN)


@pytest.fixture
def hosts():
    hosts = Lonely()
    try:
        yield hosts
    finally:
        hosts.close()


def most_attempts(took):
    return EAGER + 3 + math.log2(max(1, took / FIRST_S))


def most_looks(took):
    looks = most_attempts(took) * EACH + 2 * took / LOOK_S
    assert looks < ROUNDS / 2, took
    return looks


@pytest.mark.parametrize("end", ATTEMPTS)
def test_calls_cost_what_they_cost_without_the_library(hosts, end):
    """What is asked for is there: no call sleeps. The device is open, and none of the calls asks it."""
    hosts.measure(end, "shm")
    without = hosts.system_calls(end)
    (before, after), _, took = hosts.measure(end, "shm,verbs")
    assert before["OpenDevice"] >= 1 and before[ATTEMPTS[end]] >= 1, before
    beside = hosts.system_calls(end) - without
    meanwhile = after - before
    assert after[ATTEMPTS[end]] <= most_attempts(took), (after, took)
    assert meanwhile["GetEvent"] <= most_looks(took), (meanwhile, took)
    # What came late was slept for: one finds nothing, two ask for the flags and the time-out, and one waits.
    late = beside["ppoll"]
    assert late <= ROUNDS / 4 and beside.total() <= 4 * late + most_looks(took), beside


@pytest.mark.parametrize("end", ATTEMPTS)
def test_sleeps_ask_the_device_only_when_it_rings(hosts, end):
    (before, after), report, took = hosts.measure(end, "shm,verbs", nap_us=0)
    slept = report["waits"]["slept"]
    assert slept > 0, report
    assert (after - before)["GetEvent"] <= most_looks(took), (before, after, took)
    # Not even before a sleep: beside each a receive that finds nothing, two questions, and the wait.
    calls = hosts.all_calls(end)
    assert calls["sendto"] >= ROUNDS, calls
    assert calls.total() <= 2 * calls["sendto"] + 4 * slept + most_looks(took), (calls, slept, took)


class Stepped(Hosts):
    """The client is stepped through, instruction by instruction; the server is plain."""

    def __init__(self):
        super().__init__()
        self.port = PORT
        subprocess.run(["gcc", "-O2", PROGRAMS / "stepped.c", "-o", self.path / "stepped"], check=True)

    def least(self, fabrics):
        """Instructions of a send and of a receive of 64 bytes, at least, and the system calls of these."""
        self.port += 1
        environment = {**os.environ, "LD_BIND_NOW": "1", "SDP_FAKE_NETWORK": str(self.path / "network")}
        program = self.path / "stepped"
        server = subprocess.Popen(self.inside(0, program, "serve", ADDRESSES[0], self.port), start_new_session=True)
        self.started.append(server)
        listens = ["sh", "-c", f"until ss -Hltn sport = :{self.port} | grep -q .; do sleep 0.02; done"]
        subprocess.run(self.inside(0, *listens), check=True, timeout=LIMIT_S)
        preload = f"LD_PRELOAD={LIBRARY}"
        ask = ["env", preload, "LIBSDP_CONFIG_FILE=", f"SDP_FABRICS={fabrics}", program, "ask", ADDRESSES[0], self.port, 64]
        done = subprocess.run(self.inside(1, program, "trace", *ask), env=environment, stdout=subprocess.PIPE, check=True,
                              text=True, timeout=LIMIT_S * 4)
        rows = [[*map(int, line.split())][:2] for line in done.stdout.splitlines()]
        return min(rows[::2]), min(rows[1::2])


@pytest.mark.alone
def test_instructions_are_few_more_than_over_tcp():
    """Between two looks and two attempts: a call asks whether one is due, and takes the lock of its half."""
    hosts = Stepped()
    try:
        over_tcp, unmet = hosts.least("shm"), hosts.least("shm,verbs")
        # Attempts to meet bring looks with them, on a slow machine to each call that counts: the next run falls between two.
        for _ in range(RUNS - 1):
            if all(calls == 1 for _, calls in unmet):
                break
            unmet = [min(pair) for pair in zip(unmet, hosts.least("shm,verbs"), strict=True)]
        assert json.loads(hosts.network("totals"))["Listen"] >= 1
    finally:
        hosts.close()
    for (few, calls), (many, more_calls) in zip(over_tcp, unmet, strict=True):
        assert calls == more_calls == 1 and many < MORE * few, (over_tcp, unmet)
