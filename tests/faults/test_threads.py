"""Threads that share a connection, and signal handlers on a busy one: what Linux does over TCP happens here.

Every case runs over plain TCP and with the library, and must print the same (`programs/threads.c`,
`programs/handlers.c`).
"""

import functools
import os

import pytest

from .harness import EAGER, PINGED, compiled, on_lanes, run

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
RECEIVING = ("recv", "read", "readv", "recvfrom", "recvmsg", "recvmmsg", "waitall")
LOOKING = ("poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2")
SENDING = ("send", "sendto", "write", "writev", "sendmsg", "sendmmsg", "close")
# Bytes of the round trips that earn the lanes, most of those around receiving calls, and what the least ring takes of a sender.
WARM, RECEIVED, SENT = 10_000, 25_000, 900_000
CANCELLED = [f"cancel {call}" for call in (*RECEIVING, *LOOKING, *SENDING)]
# Nothing of theirs is on a lane while they are cancelled; the connection that follows is.
MEETING = ["cancel accept", "cancel accept4", "cancel connect"]
# More bytes than the ring has, too: then a sender waits in the middle of a record.
RECORDS = ["records 4096 4", "records 32768 8", "records 262144 4"]

HANDLERS = [
    "reenter",
    "same",
    *(f"jump {call}" for call in ("recv", "send", "poll", "select", "epoll_wait")),
    *(f"exit {call}" for call in ("recv", "send", "poll", "select", "epoll_wait")),
    *(f"inside {call}" for call in ("recv", "send", "poll", "select", "epoll_wait")),
    *(f"fork {call}" for call in ("recv", "poll", "epoll_wait")),
    "held",
    *(f"interrupt {call}" for call in ("recv", "waitall", "send", *LOOKING)),
    *(f"pipe {call}" for call in ("send", "quiet", "zero", "write", "writev", "sendmsg", "sendmmsg", "sendfile")),
    *(f"timer {kind}" for kind in ("setitimer", "thread", "process")),
    *(f"apart {kind}" for kind in ("signalfd", "sigwait")),
    "fault",
]
LIMIT_S = 60
FLIPS = {**EAGER, "SDP_TEST_LANE_FLIP": "13"}


@functools.cache
def plainly(*argv):
    """A case over TCP."""
    plain = run(argv, sdp=False, limit_s=LIMIT_S)
    assert plain.code == 0, plain.describe()
    return plain


def compare(program, case, *, stays=True, **options):
    """Runs a case over TCP and over SDP: the same result, and, if it `stays`, all that follows the first round trips on the SDP lane."""
    argv = [compiled(program), *case.split()]
    plain = plainly(*argv)
    outcome = run(argv, limit_s=LIMIT_S, **options)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == plain.seen, f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    assert outcome.report.sdp_bytes > 0, outcome.describe()
    if stays:
        on_lanes(outcome, young=PINGED)
    return outcome


@pytest.mark.parametrize("case", [*CLOSED, *WAITING, *SHUT, *MEETING])
def test_threads(case):
    compare("threads.c", case)


@pytest.mark.parametrize("lanes", ["kept", "flipped"])
@pytest.mark.parametrize("case", CANCELLED)
def test_cancelled(case, lanes):
    """What the call had sent, or what came around those that had nothing to receive, is on the lane."""
    outcome = compare("threads.c", case, stays=False, env=FLIPS if lanes == "flipped" else EAGER)
    if lanes == "kept":
        least = SENT if case.split()[1] in SENDING else RECEIVED
        assert outcome.report.count("bytes", "sdp_sent") > WARM + least, outcome.describe()


def test_cancelled_in_splice():
    """The call has taken the connection off its lane; then it is the kernel's."""
    outcome = compare("threads.c", "cancel splice", stays=False, env=EAGER)
    assert outcome.report.count("demotions", "splice") > 0, outcome.describe()


@pytest.mark.parametrize("case", ["storm", "readers 4", "readers 12"])
def test_all_at_once(case):
    """Of what one end receives each sender's bytes are in order; of what many threads receive each byte comes once."""
    compare("threads.c", case, env=EAGER)


FLIPPED = [("threads.c", case) for case in ("storm", "readers 4", "readers 12")]
FLIPPED += [("handlers.c", case) for case in ("reenter", "same", "timer setitimer", "timer thread")]


@pytest.mark.parametrize(("program", "case"), FLIPPED)
def test_with_lanes_that_flip(program, case):
    outcome = run([compiled(program), *case.split()], limit_s=LIMIT_S, env=FLIPS)
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()
    assert outcome.report.count("demotions", "test-flip") > 0, outcome.describe()


@pytest.mark.parametrize("lanes", ["kept", "flipped"])
@pytest.mark.parametrize("how", ["close", "dup2", "range"])
def test_closed_beside_a_send(how, lanes):
    """Another thread's message gets through whole, or its call says that it did not."""
    outcome = compare("closing.c", f"{how} 200", stays=False, env=FLIPS if lanes == "flipped" else EAGER)
    assert outcome.seen == {"refused": 0, "lost": 0, "odd": 0, "hung": 0}, outcome.describe()
    assert outcome.report.count("bytes", "sdp_sent") > 200 * 10 * 1024, outcome.describe()


@pytest.mark.parametrize("case", RECORDS)
def test_records_stay_whole(case):
    """One call of one thread is one piece of the stream; over TCP it mostly is, with room in the buffers."""
    outcome = run([compiled("threads.c"), *case.split()], limit_s=LIMIT_S, env=EAGER)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == {"torn": 0}, outcome.describe()
    assert outcome.report.share("sent") > 0.9, outcome.describe()


@pytest.mark.parametrize("env", [{}, {**EAGER, "SDP_TEST_LANE_FLIP": "3"}], ids=["kept", "flipped"])
def test_words_of_a_handler(env):
    outcome = compare("words.c", "", stays=not env, env=env)
    assert outcome.seen == {"main": 1, "handler": 1, "torn": 0}, outcome.describe()
    # Far more than the round trips before.
    assert outcome.report.count("bytes", "sdp_sent") > 100_000, outcome.describe()


@pytest.mark.parametrize("case", HANDLERS)
def test_handlers(case):
    outcome = compare("handlers.c", case)
    if case.startswith("interrupt"):
        # A connection for each way of interrupting, all of them on their lanes.
        assert outcome.report.count("connections", "sdp") == outcome.report.seen == 10, outcome.describe()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nobody looks")
def test_jump_out_of_a_spin():
    """Who leaves a spin with siglongjmp takes nobody's turn to spin with him."""
    outcome = compare("handlers.c", "jump recv", env={"SDP_RECV_POLL": "1000000"})
    # A hundred left for good; the round trips behind them are answered within a second.
    assert outcome.report.raw["waits"]["spun"] > 100, outcome.describe()
