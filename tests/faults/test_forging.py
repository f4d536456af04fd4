"""Forged cursors, headers, logs, arm words: the victim keeps its senses and its other connections."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from .harness import PROGRAMS, scenario

sys.path.insert(0, str(PROGRAMS))

from forging import FAMILY, FORGERIES, TURNS, USES  # noqa: E402

SEEDS = int(os.environ.get("FAULT_SEEDS", "6")) // 6 or 1
FINE = {"peer": -signal.SIGKILL, "innocent": 0, "victim": 0}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", FORGERIES)
def test_forged(kind, use, seed):
    if kind == "holes" and os.geteuid() != 0:
        pytest.skip("needs root to reach the file of a mapping")
    outcome = scenario("forging", "forge", kind, use, seed)
    assert outcome.seen["codes"] == FINE, outcome.describe()
    assert outcome.seen["common"] > 0 and not outcome.seen["signals"], outcome.describe()
    if kind in ("tail", "origin", "records") and use == "blocking":
        # The cause is visible.
        named = outcome.report.raw["reasons"].keys() | outcome.report.raw["demotions"].keys()
        assert "protocol-violation" in named, outcome.describe()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
@pytest.mark.parametrize("kind", FORGERIES)
def test_forged_by_another_user(kind):
    """Between users there is less to forge: no eventfd, and two bell pages that are theirs alone. Nobody is sent a signal."""
    uses = ["blocking", list(USES)[1 + list(FORGERIES).index(kind) % 2]]
    with ThreadPoolExecutor(len(uses)) as pool:
        outcomes = pool.map(lambda use: scenario("forging", "forge", kind, use, 0, "two", public=True), uses)
    for outcome in outcomes:
        assert outcome.seen == {"codes": FINE, "common": 2, "signals": []}, outcome.describe()
        # The victim's innocent connection, and what went to and fro on the other one before.
        assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize("holder", [1, 2])
def test_orphaned_gate(holder):
    seen = scenario("forging", "orphaned_gate", holder).seen
    assert seen["got"] == [50_000, "EOF", True] and seen["late"] and seen["soon"], seen


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", FAMILY)
def test_relative(kind, seed):
    """Who shares family memory can end what it shares, and no more."""
    outcome = scenario("forging", "relative", kind, seed, limit_s=60)
    assert outcome.seen == {"victim": 0}, outcome.describe()


@pytest.mark.parametrize(
    "name, end",
    [
        *[("itself", "let go"), ("init", "let go"), ("forger", "let go"), ("forger", "killed")],
        *[("itself", "kept"), ("init", "kept")],
    ],
)
def test_named_alive(name, end):
    """A lock in the name of somebody who lives stops its own connection for a while, and nothing else."""
    outcome = scenario("forging", "named_alive", name, end, limit_s=60)
    assert outcome.seen == {"victim": 0}, outcome.describe()
    # What went to and fro on the innocent connection.
    assert outcome.report.count("bytes", "sdp_received") > 2 * 3000 * TURNS, outcome.describe()


@pytest.mark.parametrize("how", ["stopped", "busy"])
def test_held_gate(how):
    """Who keeps a gate for ever has his own connection reset, after a bounded wait."""
    outcome = scenario("forging", "held_gate", how, limit_s=60)
    seen = outcome.seen
    assert seen["fine"] and seen["innocent"] == 0, outcome.describe()
    assert seen["results"]["send"] == seen["results"]["receive"] == "ECONNRESET", outcome.describe()
    assert outcome.report.count("demotions", "protocol-violation") == 2, outcome.describe()


@pytest.mark.parametrize("how", ["recv", "poll", "level", "edge"])
@pytest.mark.parametrize("what", ["never rings", "withholds"])
def test_silent_peer(what, how):
    """It costs its own connection time, as over TCP, and nobody else; a wait ends when its caller wanted it to."""
    outcome = scenario("silent", "silent", what, how, limit_s=60)
    assert outcome.seen == {"right": True, "fine": True, "full": True, "codes": [0, 0]}, outcome.describe()
    # The innocent connection's messages to and fro, and the warm-up.
    assert outcome.report.count("bytes", "sdp_received") > 2 * 30 * 700, outcome.describe()


@pytest.mark.parametrize("trigger", ["level", "edge"])
def test_reader_stuck_in_the_kernel(trigger):
    """No wake-up is lost for a sender that could neither use the ring nor leave it."""
    outcome = scenario("forging", "reader_stuck_in_the_kernel", trigger, limit_s=60)
    wanted = {"full": "EAGAIN", "sent": True, "futile": 0, "told": True, "more": True}
    assert outcome.seen == wanted, outcome.describe()


@pytest.mark.parametrize("wait", ["blocking", "poll", "level", "edge"])
@pytest.mark.parametrize("why", ["pinned", "end"])
def test_stuck_sender(why, wait):
    """A sender that can neither use the ring nor leave it sleeps until that changes."""
    outcome = scenario("forging", "stuck_sender", why, wait, limit_s=60)
    wanted = {"asleep": True, "told": True}
    if wait != "blocking":
        wanted |= {"full": "EAGAIN", "more": True}
    assert outcome.seen == wanted, outcome.describe()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
def test_another_user_takes_the_name_first():
    """It costs speed, and he learns nothing."""
    outcome = scenario("forging", "taken_name")
    assert outcome.seen == {"fine": True, "attached": False, "stranger": 0, "peer": 0}, outcome.describe()
    assert outcome.report.sdp_bytes == 0 and outcome.report.raw["reasons"], outcome.describe()
