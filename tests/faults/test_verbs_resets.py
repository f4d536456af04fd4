"""The other end, on another host, resets a connection that has a queue pair: each call says what it says over TCP.

The devices are stand-ins (`test_verbs.py`).
"""

import json
from pathlib import Path

import pytest

from .test_verbs import ADDRESSES, LIMIT_S, PORT, built, by_sdp, hosts, pytestmark

__all__ = ["built", "hosts", "pytestmark"]

RESETS = Path(__file__).resolve().parent / "programs" / "resets.py"
CALLS = [
    "recv recv send send",
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
    how = {"program": RESETS, "settings": (f"fabrics={fabrics}",)}
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
