"""Cancelled threads, sending signal handlers, confined processes, vfork: the C programs."""

import sys

import pytest

from .harness import PINGED, TARGET, compiled, on_lanes, run

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
    if case in DEMOTED:
        assert outcome.report.sdp_bytes > 0, outcome.describe()
        assert outcome.report.count("demotions", DEMOTED[case]) > 0, outcome.describe()
    else:
        on_lanes(outcome, young=PINGED)


@pytest.mark.parametrize("call", ["read", "write", "recv", "send", "close"])
def test_the_only_thread_cancels_itself(call):
    argv = [compiled("calls.c"), "alone", call]
    plain = run(argv, sdp=False)
    assert plain.code == 0 and plain.seen == {"fine": True}, plain.describe()
    outcome = run(argv)
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
    assert outcome.report.count("reasons", "too-young") > 0, outcome.describe()


TRIPS = 5
# A young connection of one process with itself, and what the library behind ours has seen of it.
COUNTED = f"""
import ctypes, json, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
for _ in range({TRIPS}):
    one.send(b"x"), other.recv(1)
one.close(), other.close()
print(json.dumps({{"calls": ctypes.CDLL(sys.argv[1]).counted()}}))
"""


def test_another_librarys_calls_are_made():
    """A process with a single thread asks the kernel itself only where libc would be next."""
    other = compiled("counting.c", "-shared", "-fPIC")
    both = f"LD_PRELOAD={TARGET / 'release' / 'libsdp.so'}:{other}"
    outcome = run(["env", both, sys.executable, "-c", COUNTED, other])
    assert outcome.code == 0 and outcome.seen == {"calls": 2 * TRIPS}, outcome.describe()
    assert outcome.report.count("reasons", "too-young") == 2, outcome.describe()
