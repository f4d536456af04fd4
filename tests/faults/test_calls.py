"""Cancelled threads, sending signal handlers, confined processes, vfork: the C programs."""

import pytest

from .harness import compiled, run

CASES = [
    "cancel recv",
    "cancel read",
    "cancel send",
    "cancel poll",
    "cancel epoll",
    "signals",
    "seccomp strict",
    "seccomp filter",
    "vfork",
]
# Not a byte may be lost where these demote the connection for good.
DEMOTED = {"seccomp strict": "sandbox", "seccomp filter": "sandbox"}


@pytest.mark.parametrize("case", CASES)
def test_calls(case):
    argv = [compiled("calls.c"), *case.split()]
    plain = run(argv, sdp=False)
    assert plain.code == 0, plain.describe()
    outcome = run(argv)
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()
    if case in DEMOTED:
        assert outcome.report.count("demotions", DEMOTED[case]) > 0, outcome.describe()


@pytest.mark.parametrize("call", ["read", "write", "recv", "send", "close"])
def test_the_only_thread_cancels_itself(call):
    argv = [compiled("calls.c"), "alone", call]
    plain = run(argv, sdp=False)
    assert plain.code == 0 and plain.seen == {"fine": True}, plain.describe()
    outcome = run(argv)
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
    assert outcome.report.count("reasons", "too-young") > 0, outcome.describe()
