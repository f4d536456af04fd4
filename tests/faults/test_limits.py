"""Limits of descriptors, memory and trust: connections work, and the report says why they are TCP."""

import os
import resource

import pytest

from .harness import EAGER, both, scenario

FLIPS = {**EAGER, "SDP_TEST_LANE_FLIP": "17"}
# Segments that a process keeps for the next connection with a peer: `IDLE_PER_PEER`.
KEPT_PER_PEER = 4


def tcp_for(reason, *call, **options):
    """The scenario's result is that of TCP, and the report names the reason."""
    plain = scenario(*call, sdp=False)
    outcome = scenario(*call, **options)
    assert outcome.seen == plain.seen, f"plain: {plain.seen}\n{outcome.describe()}"
    assert outcome.report.count("reasons", reason) > 0, outcome.describe()
    return outcome


@pytest.mark.parametrize("limit", [20, 40])
def test_server_with_few_descriptors(limit):
    tcp_for("no-descriptors", "limits", "few_descriptors", limit)


def test_server_with_some_descriptors():
    """Hidden descriptors take a few of the numbers, never more."""
    plain = scenario("limits", "few_descriptors", 200, sdp=False).seen
    outcome = scenario("limits", "few_descriptors", 200)
    for (accepted, word, served), (had, same, all_served) in zip(
        outcome.seen["rounds"], plain["rounds"]
    ):
        assert (word, served) == (same, all_served), outcome.describe()
        assert had - 12 <= accepted <= had, outcome.describe()


@pytest.mark.parametrize("lanes", ["kept", "flipped"])
@pytest.mark.parametrize("whose", ["ours", "theirs", "of both"])
def test_limit_lowered_later(whose, lanes):
    """What is on its lanes stays there; what the limit allows a new connection is as over TCP."""
    outcome = both("limits", "lowered_limit", whose, env=FLIPS if lanes == "flipped" else EAGER)
    if lanes == "kept":
        assert outcome.report.share("sent") > 0.95, outcome.describe()


@pytest.mark.parametrize("limit", [20, 40])
def test_client_with_few_descriptors(limit):
    tcp_for("no-descriptors", "limits", "client_with_few_descriptors", limit)


@pytest.mark.parametrize("extra", [0, 400_000, 2 << 20, 10 << 20])
def test_little_memory(extra):
    plain = scenario("limits", "little_memory", extra, sdp=False)
    outcome = scenario("limits", "little_memory", extra)
    assert outcome.seen == plain.seen == {"child": 0}, outcome.describe()
    if extra < 1 << 20:
        # The server's end of each of the three, whoever of the two came first to the meeting.
        assert outcome.report.count("reasons", "no-memory") == 3, outcome.describe()


@pytest.mark.parametrize("squeezed", ["client", "server"])
def test_memory_that_comes_back(squeezed):
    """An end that turned the other away for want of memory is asked again."""
    outcome = both("limits", "memory_comes_back", squeezed)
    assert outcome.report.sdp_bytes > 300_000, outcome.describe()
    assert outcome.report.raw["connections"]["sdp"] == 2, outcome.describe()


@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize("threads", ["threads", "alone"])
def test_leaves_nothing(threads, keeps):
    seen = scenario("limits", "leaves_nothing", threads, env={"SDP_KEEP_SEGMENTS": str(keeps)}).seen
    assert seen["had"] > 0, "no connection was ever on a lane"
    # Both may keep a few for the next connection between the two.
    most = KEPT_PER_PEER if keeps else 0
    assert seen["after"]["segments"] <= most and seen["theirs"] <= 1 + most, seen
    assert seen["heir"] == seen["left"] == 0, "idle ones are given up before a fork"
    if seen["again"] and keeps:
        assert seen["files"] < 110, f"of 220 connections most should have used an earlier one's: {seen}"
    # Hidden descriptors are made when first needed: the pool of wait sets may still grow by a few.
    assert seen["after"]["fds"] <= seen["before"]["fds"] + 4, seen
    # libc keeps stacks and arenas of ended threads; a mapping per connection would be hundreds.
    assert seen["after"]["maps"] <= seen["before"]["maps"] + 20, seen


def test_peer_that_executes():
    """Such a process lives on, but keeps nothing for us."""
    seen = scenario("limits", "peer_executes").seen
    assert seen["kept"] > 0, "nothing was ever kept"
    assert seen["directories"] == 0 and 0 < seen["left"] <= KEPT_PER_PEER, seen
    assert seen["ends"] == [0, 0], seen


@pytest.mark.alone
def test_idle_costs_nothing():
    # Lanes are met sixteen at a time: most connections earn theirs after some rounds.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(1000, hard - 300)
    seen = scenario("limits", "idle_costs_nothing", count, limit_s=60).seen
    assert seen["segments"] >= 16 and seen["child"] == 0, seen
    # One tick is the clock's own grain: the sampling itself may be charged.
    assert max(seen["ticks"]) <= 1, seen


@pytest.mark.parametrize("role", ["client", "server"])
def test_rule_tcp(role):
    options = ("--rule", f"use tcp {role} * *:*")
    outcome = tcp_for("rule-tcp", "limits", "one_echo", options=options)
    assert outcome.report.sdp_bytes == 0, outcome.describe()


RULES = {
    "missing": None,
    "empty": b"",
    "binary": bytes(range(256)) * 300,
    "garbage": b"use sdp\nuse tcp client\nmatch\nlog min-level 99999999999999999\n" * 50,
    "long line": b"use tcp client * " + b"9" * 100_000 + b"\n",
    "huge": b"use tcp server nobody 10.0.0.1:1\n" * 40_000,
    "no newline": b"use both client * *:*",
}


@pytest.mark.parametrize("kind", [*RULES, "directory", "fifo", "unreadable"])
def test_rule_file(kind, tmp_path):
    path = tmp_path / "libsdp.conf"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "unreadable":
        path.symlink_to("/proc/1/mem")
    elif RULES[kind] is not None:
        path.write_bytes(RULES[kind])
    outcome = scenario("limits", "one_echo", rules=path)
    assert outcome.seen == {"fine": True, "end": True}, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


def test_a_good_rule_among_bad_ones(tmp_path):
    path = tmp_path / "libsdp.conf"
    path.write_bytes(b"use nonsense\n\x00\nuse tcp client * *:*\n]]]]\n")
    outcome = scenario("limits", "one_echo", rules=path)
    assert outcome.seen == {"fine": True, "end": True}, outcome.describe()
    assert outcome.report.count("reasons", "rule-tcp") > 0, outcome.describe()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@needs_root
def test_two_users():
    outcome = scenario("limits", "two_users", public=True)
    assert outcome.seen == {"child": 0}, outcome.describe()
    assert outcome.report.sdp_bytes > 500_000, outcome.describe()


@needs_root
def test_both_ends_of_another_user():
    both("limits", "same_other_user", public=True)


@pytest.mark.parametrize(
    "how", [pytest.param("stranger", marks=needs_root), "rubbish", "hangup", "silent"]
)
def test_squatted_name(how):
    outcome = scenario("limits", "squatted", how)
    assert outcome.seen == {"fine": True, "end": True}, outcome.describe()
    if how == "stranger":
        assert outcome.report.sdp_bytes == 0, outcome.describe()
        assert outcome.report.raw["reasons"].keys() & {"uid-differs", "peer-refused"}, outcome.describe()
