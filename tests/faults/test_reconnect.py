"""A socket that is disconnected and used again: nothing of one connection is seen in the other."""

import pytest

from .harness import EAGER, both, scenario

MODES = pytest.mark.parametrize("env", [EAGER, {}], ids=["eager", "default"])


@MODES
@pytest.mark.parametrize("way", ["libc", "raw"])
@pytest.mark.parametrize("unread", ["unread", "read"])
@pytest.mark.parametrize("waits", ["calls", "epoll"])
def test_again(way, unread, waits, env):
    both("reconnect", "again", way, "warm", unread, waits, env=env)


@MODES
def test_young(env):
    both("reconnect", "again", "libc", "young", "unread", "calls", env=env)


@MODES
@pytest.mark.parametrize("way", ["libc", "raw"])
def test_listens(way, env):
    both("reconnect", "listens", way, env=env)


@MODES
def test_accepted(env):
    both("reconnect", "accepted", "libc", env=env)


@MODES
@pytest.mark.parametrize("who", ["child", "parent", "both"])
def test_child(who, env):
    both("reconnect", "child", who, env=env)


@MODES
def test_listened(env):
    both("reconnect", "listened", env=env)


@MODES
def test_connected_already(env):
    both("reconnect", "connected_already", env=env)


RULES = {
    "first": ["use tcp client * 127.0.0.1:9"],
    "second": ["use both client * 127.0.0.1:9", "use tcp client * *:*"],
}


@pytest.mark.parametrize("rule", RULES)
def test_refused(rule):
    """Rules are asked for the address of the attempt that succeeded."""
    plain = scenario("reconnect", "refused", sdp=False)
    words = [word for text in RULES[rule] for word in ("--rule", text)]
    outcome = scenario("reconnect", "refused", env=EAGER, options=words)
    assert outcome.seen == plain.seen, outcome.describe()
    assert (outcome.report.sdp_bytes > 0) == (rule == "first"), outcome.describe()
