"""The byte-stream oracle between two hosts, while queue pairs break, roads end and devices go: every byte, once, in order. The
ends are of users that each seed draws, as on one host.

The devices are stand-ins (`tests/faults/test_verbs.py`).
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.limits import now  # noqa: E402
from faults.rooted import rooted_hosts  # noqa: E402
from faults.test_verbs import ADDRESSES, LIMIT_S, PORT, built, by_sdp, pytestmark  # noqa: E402

__all__ = ["built", "rooted_hosts"]
pytestmark = [pytest.mark.integrity, pytestmark]

STREAM = Path(__file__).resolve().parent / "stream.py"
FIRST = int(os.environ.get("ORACLE_FIRST", "1"))
SEEDS = max(int(os.environ.get("ORACLE_SEEDS", "500")) // 10, 1)
# Posted before the first trouble: some of them carry payload.
FIRST_MESSAGES = 20
TOTAL_BYTES = int(os.environ.get("ORACLE_BYTES", "1000000"))
# Who has the connections. Two processes that use one of them are another matter: docs/known-defects.md, section 2.
HOLDERS = "one threads numbers"
FORKS = {"forks": "forks forks threads"}
ROW = 10
ROWS = [(at, min(at + ROW, FIRST + SEEDS) - 1) for at in range(FIRST, FIRST + SEEDS, ROW)]
# Of every five rows the first is played with forks, too.
FORKED = ROWS[::5]


def nothing(_hosts, _rng):
    pass


def break_pairs(hosts, _rng):
    hosts.network("break")


def end_road(hosts, rng):
    """Messages or their confirmations are lost for a while."""
    hosts.network("road", rng.choice(["cut", "mute"]))
    time.sleep(rng.random() * 0.5)
    hosts.network("road", "open")
    hosts.network("expire")


def remove_device(hosts, rng):
    """And bring it back. It is looked for again a second later."""
    which = rng.randrange(2)
    hosts.network("remove", str(which))
    time.sleep(rng.random() * 0.5)
    hosts.network("add", ADDRESSES[which])
    time.sleep(1 + rng.random())


def posted(hosts):
    """Messages that both ends have given to their queue pairs."""
    return json.loads(hosts.network("totals"))["PostSend"]


TROUBLES = [nothing, break_pairs, end_road, remove_device]


def play(hosts, row, trouble, is_left_early=False):
    """Both ends of a row of seeds, with a trouble again and again."""
    rng = random.Random(row[0])
    words = [f"{row[0]}-{row[1]}", TOTAL_BYTES]
    end = now() + 4 * LIMIT_S
    ends = [hosts.start(0, "server", *words, "serve", ADDRESSES[0], PORT, program=STREAM)]
    hosts.listens()
    ends.append(hosts.start(1, "client", *words, "ask", ADDRESSES[0], PORT, program=STREAM))
    # A short stream could be over before a road that ends early is open again.
    while posted(hosts) < FIRST_MESSAGES and all(process.poll() is None for process in ends):
        time.sleep(0.005)
    while any(process.poll() is None for process in ends) and now() < end:
        trouble(hosts, rng)
        time.sleep(0.02 + rng.random() * 0.2)
    for process in ends:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    told = [(process.wait(LIMIT_S), process.stderr.read()) for process in ends]
    assert [code for code, _ in told] == [0, 0], told
    if trouble is remove_device or is_left_early and trouble is not nothing:
        return  # which may be away all the time; or trouble came each time before they had met
    for name in ("server", "client"):
        report = json.loads((hosts.path / f"{name}.json").read_text())
        assert by_sdp(report) > 0, report


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_stream_between_hosts(hosts, row, trouble, monkeypatch):
    monkeypatch.setenv("ORACLE_HOLDERS", HOLDERS)
    play(hosts, row, trouble)


@pytest.mark.parametrize("trouble", [nothing, break_pairs], ids=lambda trouble: trouble.__name__)
@pytest.mark.parametrize("row", ROWS[:1], ids=lambda row: f"{row[0]}-{row[1]}")
def test_stream_that_is_read(hosts, row, trouble, monkeypatch):
    """Large blocking sends are advertised, and READ by blocking receives of a process of the same user."""
    monkeypatch.setenv("ORACLE_HOLDERS", HOLDERS)
    monkeypatch.setenv("SDP_ZCOPY_THRESH", "4096")
    play(hosts, row, trouble)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
@pytest.mark.parametrize("holders", FORKS)
@pytest.mark.parametrize("row", FORKED, ids=lambda row: f"{row[0]}-{row[1]}")
def test_stream_of_fork_children(hosts, row, holders, trouble, monkeypatch):
    """A child has the connection from its beginning."""
    monkeypatch.setenv("ORACLE_HOLDERS", FORKS[holders])
    play(hosts, row, trouble, is_left_early=True)
