"""The byte-stream oracle between two machines, while queue pairs are killed at random: every byte, once, in order.

A kill takes the RDMA device away, or drops the packets of RoCE for longer than the library waits for an answer. TCP goes on.
"""

import json
import os
import random
import shlex
import time
from pathlib import Path

import pytest

from machines.test_programs import report
from support.limits import now

STREAM = Path(__file__).resolve().parent.parent / "oracle" / "stream.py"
PORT = 7071
TOTAL_BYTES = int(os.environ.get("ORACLE_BYTES", "10000000"))
FIRST = int(os.environ.get("ORACLE_FIRST", "1"))
ROW = 3
ROWS = [(at, at + ROW - 1) for at in range(FIRST, FIRST + 2 * ROW, ROW)]
HOLDERS = "one threads numbers"
LIMIT_S = 300
# So many plays, with seeds that are so far apart.
PLAYS, MORE = 4, 1000
MUTE = """
add table inet kill
add chain inet kill arriving { type filter hook input priority 0; }
add rule inet kill arriving udp dport 4791 drop
"""


def remove_device(guest, rng):
    guest.run(f"rdma link delete rxe0; sleep {rng.random():.2f}")
    guest.add_device()


def mute_device(guest, rng):
    guest.run(f"nft {shlex.quote(MUTE)}; sleep {0.5 + rng.random():.2f}; nft delete table inet kill")


KILLS = {"removed": [remove_device], "muted": [mute_device], "both": [remove_device, mute_device]}


def ends(pair, sdp, row):
    """The oracle's server on `a` and its client on `b`. They change their users themselves, as their seeds say."""
    run = f"ORACLE_HOLDERS={shlex.quote(HOLDERS)} {sdp} run --no-config --set fabrics=shm,verbs --report /tmp/oracle-%s.json -- "
    run += f"/usr/bin/python3 {STREAM} {row[0]}-{row[1]} {TOTAL_BYTES} %s {pair.a.address} {PORT}"
    server = pair.a.start(run % ("server", "serve"))
    pair.a.wait_listening(PORT)
    return server, pair.b.start(run % ("client", "ask"))


@pytest.mark.integrity
@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_stream_between_machines(pair, ladder, row, kills):
    """Streams of this row, and of later ones until a queue pair was killed that a stream was on: most bytes go by TCP, for
    lack of credit."""
    rng = random.Random(row[0])
    for more in range(PLAYS):
        reports = play(pair, ladder.artifacts.sdp, [seed + more * MORE for seed in row], KILLS[kills], rng)
        for one in reports:
            assert one["fabrics"]["verbs"] > 0, one
        if any(one["demotions"].get("lane-lost", 0) for one in reports):
            return
    raise AssertionError(f"no queue pair was lost in {PLAYS} plays: {reports}")


def play(pair, sdp, row, kills, rng):
    """One play: the reports of both ends."""
    server, client = ends(pair, sdp, row)
    end = now() + LIMIT_S
    while not (server.is_over() and client.is_over()):
        assert now() < end, (server.is_over(), client.is_over())
        rng.choice(kills)(rng.choice([pair.a, pair.b]), rng)
        time.sleep(0.5 + rng.random())
    told = server.wait(), client.wait()
    assert [one.status for one in told] == [0, 0], told
    reports = report(pair.a, "oracle-server"), report(pair.b, "oracle-client")
    print(json.dumps(reports))
    return reports
