"""Peers that are killed, stopped, exit or close: the survivor sees what TCP shows."""

import os
import select

import pytest

from .harness import EAGER, both, compiled, flips, run, scenario, seeds

FLIPS = flips(5)
UNREAD = ["nothing_unread", "our_bytes_unread", "its_bytes_unread", "both_unread"]


@pytest.mark.parametrize("calls", ["recv", "write"])
@pytest.mark.parametrize("how", ["kill", "exit", "close"])
@pytest.mark.parametrize("unread", UNREAD)
def test_peer_gone(unread, how, calls):
    if how == "kill" and calls == "write":
        # A killed peer's kernel cannot tell what was unread in the ring, and unread wake-ups may make
        # its FIN a reset: the word differs, that there is one within a few calls does not.
        seen = scenario("ending", unread, how, calls).seen
        assert seen["write"] in (["EPIPE", True], ["ECONNRESET", True]), seen
        assert seen["read"] == [3000 if unread in UNREAD[2:] else 0, "EOF", True], seen
        return
    both("ending", unread, how, calls)


@pytest.mark.parametrize("env", [{}, EAGER, FLIPS], ids=["earned", "eager", "flips"])
def test_closed_behind_a_switch(env):
    """What no call has met yet is unread all the same."""
    outcome = both("ending", "closed_behind_a_switch", 24, env=env)
    assert outcome.seen == {"told": ["reset"]}, outcome.describe()


@pytest.mark.parametrize("how", ["kill", "exit", "close"])
def test_spaced_writes(how):
    if how == "kill":
        # As above: the word may differ, not that the second write gets one.
        seen = scenario("ending", "spaced_writes", how).seen
        assert seen["writes"][1] in ("EPIPE", "ECONNRESET"), seen
        assert seen["writes"][::2] == [2, "EPIPE"], seen
        return
    both("ending", "spaced_writes", how)


@pytest.mark.parametrize("wait", ["recv", "send", "poll", "epoll", "epoll-et"])
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_peer_gone_while_asleep(how, wait):
    if how == "kill" and "poll" in wait:
        # As above: wake-ups that a killed process left unread may make its FIN a reset.
        seen = scenario("ending", "while_asleep", how, wait).seen
        assert seen["soon"] and len(seen["seen"]) == 1 and seen["seen"][0] & select.POLLIN, seen
        return
    both("ending", "while_asleep", how, wait)


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("how", ["kill", "exit", "shutdown"])
def test_peer_gone_behind_unread_bytes(how, env):
    """The end is an edge of its own, once and with RDHUP, and beside the bytes a level-triggered set says that as often as it is
    asked."""
    seen = both("ending", "behind_unread_bytes", how, env=env).seen
    hup = select.EPOLLIN | select.EPOLLRDHUP
    assert seen["edge"][:2] == [[select.EPOLLIN]] * 2, seen
    assert seen["level rdhup"][1:4] == [[hup], 100, [hup]], seen
    assert seen["edge rdhup"] == [[select.EPOLLIN], [hup], 100, [], 0], seen


@pytest.mark.parametrize("seed", seeds(6))
def test_killed_under_load(seed):
    assert scenario("ending", "killed_under_load", seed).seen == {"fine": True}


@pytest.mark.parametrize("seed", seeds(6))
def test_stopped_under_load(seed):
    both("ending", "stopped_under_load", seed)


def test_stopped_peer_is_left_alone():
    both("ending", "stopped_peer_is_left_alone")


@pytest.mark.parametrize("wait", ["asleep", "busy"])
@pytest.mark.parametrize("trigger", ["level", "edge"])
@pytest.mark.parametrize("registered", ["before", "after"])
def test_dead_with_a_full_ring(registered, trigger, wait):
    seen = both("ending", "dead_with_a_full_ring", registered, trigger, wait).seen
    assert seen == {"full": "EAGAIN", "gone": True}


@pytest.mark.parametrize("much", [200_000, 2_000_000])
@pytest.mark.parametrize("peer", ["unaware", "young", "warm"])
def test_reset_during_a_send(peer, much):
    seen = scenario("ending", "reset_during_a_send", peer, much).seen
    assert seen == scenario("ending", "reset_during_a_send", peer, much, sdp=False).seen
    assert seen["seen"] == ["ECONNRESET", "EPIPE"], seen


@pytest.mark.parametrize("how", ["bell", "judged", "relative"])
def test_cut_off(how):
    """A stream that the kernel lane cannot finish has no end, also where a sender of ours took the kernel's word."""
    outcome = scenario("ending", "cut_off", how)
    told = {"wrote": "EPIPE", "cut": True, "read": "ECONNRESET", "right": True, "again": "EOF"}
    # The sending half came onto its lane; the write behind the end need not go there.
    assert outcome.seen == told and outcome.report.raw["switches"]["promoted"] > 0, outcome.describe()


def test_exit_with_bells_unread():
    both("ending", "exit_with_bells")


@pytest.mark.parametrize("related", ["related", "strangers"])
@pytest.mark.parametrize("call", ["recv", "poll"])
def test_closed_while_another_sleeps(call, related):
    outcome = scenario("ending", "closed_while_another_sleeps", call, related)
    seen = outcome.seen
    assert not seen["hangs"] and seen["back"] == "other" and seen["codes"] == [0, 0], seen
    assert seen["slept"][0] in ("late", True), seen


@pytest.mark.parametrize("how", [1, 2])
def test_reset_answers_a_shutdown(how):
    """The peer is faster than the kernel's part of our `shutdown`: the call has done its work all the same."""
    outcome = run([compiled("held.c"), "late", how], env=EAGER)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == {"result": 0, "error": "", "again": "ENOTCONN"}, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize("how", [0, 1, 2])
def test_reset_before_a_shutdown(how):
    argv = [compiled("held.c"), "early", how]
    outcome = run(argv, env=EAGER)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == run(argv, sdp=False).seen, outcome.describe()
    assert outcome.seen["error"] == "ENOTCONN" and outcome.report.sdp_bytes > 0, outcome.describe()
