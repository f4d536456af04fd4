"""Peers that vanish without FIN or RST, and lost segments: what the kernel finds out is told, and no byte is lost.

Each run is in a network namespace of its own, whose loopback device goes down for a while.
"""

import os
import subprocess
import sys

import pytest

from .harness import EAGER, PROGRAMS, flips, run, seeds

FLIPS = flips(11)
LIMIT_S = 90

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0,
    reason="needs a network namespace",
)


def play(*words, env=None, **options):
    argv = ["unshare", "--net", sys.executable, PROGRAMS / "vanishing.py", *words]
    outcome = run(argv, env=env, limit_s=LIMIT_S, **options)
    assert outcome.code == 0, outcome.describe()
    return outcome


@pytest.mark.parametrize("name", ["vanished", "late_end"])
def test_peer_vanishes(name):
    plain = play(name, sdp=False)
    for env in ({}, FLIPS):
        outcome = play(name, env=env)
        assert outcome.seen == plain.seen, f"over TCP: {plain.seen}\n{outcome.describe()}"
        assert all(code == 0 for _, code in outcome.seen.values()), outcome.describe()
        assert outcome.report.sdp_bytes > 0, outcome.describe()
        if name == "late_end" and not env:
            # The last words were said on the lane.
            assert outcome.report.count("bytes", "sdp_received") >= 3000 * len(outcome.seen), outcome.describe()


@pytest.mark.parametrize("users", ["one", "two"])
@pytest.mark.parametrize("lanes", ["kept", "flipped"])
@pytest.mark.parametrize("seed", seeds(2))
def test_lost_segments(seed, lanes, users):
    """Of two users the bells, too, are segments that may be lost."""
    outcome = play("lossy", seed, users, env=FLIPS if lanes == "flipped" else EAGER)
    assert outcome.seen == {"failures": [], "again": True}, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


def test_lost_segments_over_tcp():
    assert play("lossy", 1, sdp=False).seen == {"failures": [], "again": True}
