"""Threads that share a connection, and signal handlers on a busy one: what Linux does over TCP happens here.

Every case runs over plain TCP and with the library, and must print the same (`programs/threads.c`,
`programs/handlers.c`).
"""

import os

import pytest

from .harness import EAGER, compiled, run

CLOSED = [
    *(f"close {how} recv" for how in ("close", "dup2", "dup3", "range")),
    *(f"close close {call}" for call in ("read", "recvmsg", "recvmmsg", "waitall")),
    *(f"close {how} send" for how in ("close", "dup2")),
    *(f"close close {call}" for call in ("write", "sendmsg")),
    "ended close recv",
    "ended dup2 recv",
]
WAITING = [
    *(f"wait close {call}" for call in ("poll", "ppoll", "select", "pselect", "epoll_wait")),
    "wait dup2 poll",
]
SHUT = [f"shut {call}" for call in ("recv", "waitall", "send", "sendmsg", "poll", "select", "epoll_wait")]
RECEIVING = ("recv", "read", "recvmsg", "recvmmsg", "poll", "ppoll", "select", "pselect", "epoll_wait")
SENDING = ("send", "write", "writev", "sendmsg", "sendmmsg")
CANCELLED = [f"cancel {call}" for call in (*RECEIVING, *SENDING)]
# Nothing of theirs is on a lane while they are cancelled; the connection that follows is.
MEETING = ["cancel accept", "cancel connect"]
# More bytes than the ring has, too: then a sender waits in the middle of a record.
RECORDS = ["records 4096 4", "records 32768 8", "records 262144 4"]

HANDLERS = [
    "reenter",
    "same",
    *(f"jump {call}" for call in ("recv", "send", "poll", "select")),
    *(f"exit {call}" for call in ("recv", "poll", "select")),
    *(f"inside {call}" for call in ("recv", "poll", "select")),
    *(f"fork {call}" for call in ("recv", "poll", "epoll_wait")),
    "held",
    *(f"interrupt {call}" for call in ("recv", "waitall", "send")),
    *(f"pipe {call}" for call in ("send", "quiet", "zero", "write", "writev", "sendmsg", "sendmmsg", "sendfile")),
    *(f"timer {kind}" for kind in ("setitimer", "thread", "process")),
    *(f"apart {kind}" for kind in ("signalfd", "sigwait")),
    "fault",
]
LIMIT_S = 60


def compare(program, case, **options):
    """Runs a case over TCP and over SDP: the same result, and payload on the SDP lane."""
    argv = [compiled(program), *case.split()]
    plain = run(argv, sdp=False, limit_s=LIMIT_S)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, limit_s=LIMIT_S, **options)
    assert outcome.code == 0, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()
    assert outcome.seen == plain.seen, f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    return outcome


@pytest.mark.parametrize("case", [*CLOSED, *WAITING, *SHUT, "storm", *CANCELLED, *MEETING])
def test_threads(case):
    compare("threads.c", case)


@pytest.mark.parametrize("case", RECORDS)
def test_records_stay_whole(case):
    """One call of one thread is one piece of the stream; over TCP it mostly is, with room in the buffers."""
    outcome = run([compiled("threads.c"), *case.split()], limit_s=LIMIT_S, env=EAGER)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == {"torn": 0}, outcome.describe()
    assert outcome.report.share("sent") > 0.9, outcome.describe()


@pytest.mark.parametrize("env", [{}, {**EAGER, "SDP_TEST_LANE_FLIP": "3"}], ids=["kept", "flipped"])
def test_words_of_a_handler(env):
    outcome = compare("words.c", "", env=env)
    assert outcome.seen == {"main": 1, "handler": 1, "torn": 0}, outcome.describe()
    # Far more than the round trips before.
    assert outcome.report.count("bytes", "sdp_sent") > 100_000, outcome.describe()


@pytest.mark.parametrize("case", HANDLERS)
def test_handlers(case):
    compare("handlers.c", case)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nobody looks")
def test_jump_out_of_a_spin():
    """Who leaves a spin with siglongjmp takes nobody's turn to spin with him."""
    outcome = compare("handlers.c", "jump recv", env={"SDP_RECV_POLL": "1000000"})
    # A hundred left for good; the round trips behind them are answered within a second.
    assert outcome.report.raw["waits"]["spun"] > 100, outcome.describe()
