"""Read ZCopy between hosts: large blocking sends, whose bytes the other end's device reads where they are.

The devices are stand-ins (`test_verbs.py`), which read another process's memory by a system call: the programs are of one user.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from support.limits import now

from .rooted import rooted_hosts
from .test_verbs import ADDRESSES, LIMIT_S, PORT, built, by_sdp, pytestmark

__all__ = ["built", "pytestmark", "rooted_hosts"]

PROGRAM = Path(__file__).resolve().parent / "programs" / "zcopy.py"
MIB = 1 << 20
COUNT = 24 * MIB
ENDLESS = 1 << 40
TRIES = 20
# Messages, advertisements and READs: more than both ends send before the stream.
MANY = 3000
ON = ("sdp_zcopy_thresh=65536",)


def play(hosts, how=("block", "block"), room=MIB, size=MIB, settings=(ON, ON), count=COUNT):
    """The reports of both ends of a stream."""
    server = hosts.start(0, "server", "serve", PORT, count, room, how[0], program=PROGRAM, settings=settings[0])
    hosts.listens()
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, count, size, how[1], program=PROGRAM, settings=settings[1])
    told = [(*process.communicate(timeout=4 * LIMIT_S), process.returncode) for process in (client, server)]
    assert told == [("every byte\n", "", 0), ("", "", 0)], told
    assert hosts.live()["regions"] == 0
    return [json.loads((hosts.path / f"{name}.json").read_text()) for name in ("client", "server")]


def reads(report):
    return report["transfers"]["read_zcopy"], report["transfers"]["zcopy_bytes"]


def play_until_read(hosts, **how):
    """A receiver that the machine lets wait is taken for one that does not receive: then once more."""
    for _ in range(TRIES):
        client, server = play(hosts, **how)
        if reads(client)[0]:
            return client, server
    raise AssertionError(client)


def test_large_sends_are_read(hosts):
    client, server = play_until_read(hosts)
    count, length = reads(client)
    assert MIB // 32 < length <= count * MIB, client
    assert by_sdp(client) >= length and by_sdp(server) >= length and reads(server) == (0, 0), server


@pytest.mark.parametrize("room", [100_001, 16_384, 4999])
def test_receives_of_less_than_is_advertised(hosts, room):
    """Down to those that are too small to READ."""
    if room >= 16_384:
        play_until_read(hosts, room=room, count=8 * MIB)
    else:
        client, _ = play(hosts, room=room, count=8 * MIB)
        assert reads(client) == (0, 0) and by_sdp(client) > 0, client


@pytest.mark.parametrize("settings", [(ON, ()), ((), ON), ((), ())], ids=["source", "sink", "neither"])
def test_both_ends_must_want_it(hosts, settings):
    client, _ = play(hosts, settings=settings, count=4 * MIB)
    assert reads(client) == (0, 0) and by_sdp(client) > 0, client


def test_a_receiver_that_polls_reads_nothing(hosts):
    """It refuses, and its sender does not wait for long."""
    client, _ = play(hosts, how=("poll", "block"), count=8 * MIB)
    assert reads(client) == (0, 0) and by_sdp(client) > 0, client


def test_a_receiver_that_comes_late(hosts):
    """Its sender takes back what is not read, and the carrier has the rest as it would have."""
    play(hosts, how=("late", "block"), count=12 * MIB, room=MIB // 4)


def test_signals_that_interrupt_a_sender(hosts):
    client, _ = play(hosts, how=("block", "signal"))
    assert by_sdp(client) > 0, client


def test_both_ends_send(hosts):
    client, server = play(hosts, how=("both", "both"), count=8 * MIB)
    assert by_sdp(client) > 0 and by_sdp(server) > 0


def test_a_sender_that_forks_meanwhile(hosts):
    """The children do not use the connection, and the parent goes on."""
    play_until_read(hosts, how=("block", "fork"))


@pytest.mark.parametrize("dies", ["client", "server"])
def test_an_end_is_killed(hosts, dies):
    """In the middle of the stream: the other end has an error, and no wrong byte."""
    words = {"program": PROGRAM, "settings": ON}
    ends = {"server": hosts.start(0, "server", "serve", PORT, ENDLESS, MIB, "block", **words)}
    hosts.listens()
    ends["client"] = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, ENDLESS, MIB, "block", **words)
    end = now() + 4 * LIMIT_S
    while json.loads(hosts.network("totals"))["PostSend"] < MANY and now() < end:
        time.sleep(0.01)
    os.killpg(ends[dies].pid, signal.SIGKILL)
    other = ends["client" if dies == "server" else "server"]
    _, failed = other.communicate(timeout=4 * LIMIT_S)
    assert any(error in failed for error in ("EOFError", "ConnectionResetError", "BrokenPipeError")), failed
    assert hosts.live()["regions"] == 0
