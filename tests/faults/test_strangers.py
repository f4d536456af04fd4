"""Processes of other users have doorbells of a process, and do with them what they like."""

import os
import sys

import pytest

from .harness import EAGER, PROGRAMS, scenario

sys.path.insert(0, str(PROGRAMS))

from strangers import ATTACKS, BULK, FALSE_BELLS, INNOCENTS, PROCESSES, USERS, WAITS  # noqa: E402

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users")

# Longest that a message to and fro may take on a machine that others use: a lost wake-up takes for ever.
WORST_S = 2
# Other users that a process has doorbells for, and descriptors of each; processes of which it keeps one.
DOORS, EACH, LIVES = 16, 3, 64


def attack(kind):
    outcome = scenario("strangers", "attack", kind, env=EAGER, public=True, limit_s=80)
    seen = outcome.seen
    assert "failed" not in seen["attacker"] and seen["code"] == 0, outcome.describe()
    assert seen["victim"]["code"] == 0 and seen["victim"]["foul"] == 0, outcome.describe()
    for name in [*INNOCENTS, "late"]:
        innocent = seen[name]
        assert innocent["code"] == 0 and innocent["fine"], outcome.describe()
        assert innocent["worst"] < WORST_S, outcome.describe()
    for name in INNOCENTS:
        assert seen[name]["turns"] > 20, outcome.describe()
    # The innocents' messages to and fro.
    assert outcome.report.sdp_bytes > 20 * 2 * 1000 * len(INNOCENTS), outcome.describe()
    return outcome


@pytest.mark.parametrize("kind", ATTACKS)
def test_attacks(kind):
    """It meets as if it were honest; innocent connections notice nothing."""
    outcome = attack(kind)
    assert outcome.seen["attacker"]["met"], outcome.describe()


@pytest.mark.parametrize("kind", FALSE_BELLS)
def test_false_bells(kind):
    """What is no doorbell of the peer's user is not rung: the connection stays on TCP."""
    outcome = attack(kind)
    assert outcome.seen["attacker"] == {"met": False}, outcome.describe()


def test_many():
    """However many users and processes come, there is an end to what they cost."""
    outcome = attack("many")
    came = outcome.seen["attacker"]
    assert came["met"] and came["belled"] + came["bare"] == USERS * PROCESSES, outcome.describe()
    # Innocents have some of them.
    assert (DOORS - 3) * PROCESSES <= came["belled"] <= DOORS * PROCESSES, outcome.describe()
    assert outcome.seen["victim"]["most"] < DOORS * EACH + LIVES + 40, outcome.describe()


@pytest.mark.parametrize("wait", WAITS)
def test_room(wait):
    """Between users a reader rings for room: who waits for it stays on the lane, however it waits."""
    outcome = scenario("strangers", "between", wait, env=EAGER, public=True, limit_s=60)
    assert outcome.seen == {"code": 0, "took": True}, outcome.describe()
    assert outcome.report.count("demotions", "ring-full") == 0, outcome.describe()
    assert outcome.report.count("bytes", "sdp_sent") > 0.95 * BULK, outcome.describe()
    assert outcome.report.raw["waits"]["slept"] > 0, outcome.describe()


@pytest.mark.parametrize("env", [EAGER, {}], ids=["eager", "default"])
def test_one_way(env):
    """An end of another user's that only receives has lanes, too."""
    outcome = scenario("strangers", "one_way", env=env, public=True, limit_s=60)
    assert outcome.seen == {"code": 0, "taken": True}, outcome.describe()
    assert outcome.report.count("bytes", "sdp_sent") > 4 << 20, outcome.describe()


@pytest.mark.parametrize("users", ["one", "two"])
@pytest.mark.parametrize("wait", ["blocking", "poll", "edge"])
def test_no_room_without_a_bell(wait, users):
    """Without descriptors for a bell nobody rings for room, and nobody naps: what does not fit goes over TCP."""
    outcome = scenario("strangers", "between", wait, users, 100, env=EAGER, public=True, limit_s=60)
    assert outcome.seen == {"code": 0, "took": True}, outcome.describe()
    assert outcome.report.count("demotions", "ring-full") > 0, outcome.describe()
    assert outcome.report.count("bytes", "sdp_sent") > 0, outcome.describe()


def test_renamed():
    """A process that changes its user meets one that it knows anew: neither waits for the other's former doorbell."""
    outcome = scenario("strangers", "renamed", env=EAGER, public=True, limit_s=60)
    assert outcome.seen == {"code": 0}, outcome.describe()
    assert outcome.report.sdp_bytes > 2 * 3 * 10 * 1000, outcome.describe()
