"""Threads that share a connection, and signal handlers on a busy one: what Linux does over TCP happens here.

Every case runs over plain TCP and with the library, and must print the same (`programs/threads.c`,
`programs/handlers.c`).

The traps of the design, and the test of each:

| trap | test |
|---|---|
| FIONREAD and short reads under edge-triggered epoll | `tests/oracle` (calls with FIONREAD, edges, flips); `test_process_model.py::test_edge_and_fionread` |
| a young connection is used by parent and child | `test_process_model.py::test_young_across_fork`; `test_handing.py::test_used_by_both` |
| a waker is killed between publishing and ringing | `test_ending.py::test_killed_under_load`; models of arm words and bell page |
| lanes flip during a kernel read | `tests/oracle` with flips; `test_ending.py::test_stopped_under_load` |
| a seccomp filter on a lane | `test_calls.py[seccomp …]`, `test_sandbox.py`; `tests/apps/test_sshd.py` |
| a handler re-enters, or leaves with siglongjmp | `test_handlers[reenter]`, `[same]`, `[jump …]`; `test_calls.py[signals]` |
| a vfork child closes everything | `test_calls.py[vfork]`; `test_handing.py::test_leaked_into_helpers`; `test_process_model.py::test_closefrom_in_a_child` |
| exec and passing with unread ring bytes | `test_handing.py::test_executed`, `::test_passed`; `tests/apps/test_xinetd.py`, `test_bash.py` |
| a poller that nobody sees | `test_process_model.py::test_unseen_reader`; `tests/apps/test_node.py`, `test_go.py` |
| hostile or clumsy sharing of memory | `test_forging.py`; `test_ending.py::test_stopped_peer_is_left_alone` |
| FIN or RST with a bell unread | `test_ending.py::test_peer_gone`, `::test_exit_with_bells_unread` |
| a number is used again after a close that nobody saw | `test_process_model.py::test_unseen_close` |
| a program rewrites its environment | `test_process_model.py::test_rewritten_environment` |
| the eventfd is shared by threads | `test_threads[records …]`, `[storm]` |
| spinning on one busy CPU | `test_process_model.py::test_one_cpu` |
| the edge of EPOLLOUT is swallowed with a bell | `test_process_model.py::test_edge_of_room` |
| writes to a dead peer | `test_ending.py::test_spaced_writes` |
| hidden descriptors under close_range and few descriptors | `test_limits.py::test_server_with_few_descriptors`; `test_process_model.py::test_closefrom_in_a_child` |
| nested epoll | `test_process_model.py::test_nested_epoll` |
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


@pytest.mark.parametrize("case", [*CLOSED, *WAITING, *SHUT, *CANCELLED, *MEETING, "storm"])
def test_threads(case):
    compare("threads.c", case)


@pytest.mark.parametrize("case", RECORDS)
def test_records_stay_whole(case):
    """One call of one thread is one piece of the stream; over TCP it mostly is, with room in the buffers."""
    outcome = run([compiled("threads.c"), *case.split()], limit_s=LIMIT_S, env=EAGER)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == {"torn": 0}, outcome.describe()
    assert outcome.report.share("sent") > 0.9, outcome.describe()


@pytest.mark.parametrize("case", HANDLERS)
def test_handlers(case):
    compare("handlers.c", case)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nobody looks")
def test_jump_out_of_a_spin():
    """Who leaves a spin with siglongjmp takes nobody's turn to spin with him."""
    outcome = compare("handlers.c", "jump recv", env={"SDP_RECV_POLL": "1000000"})
    # A hundred left for good; the round trips behind them are answered within a second.
    assert outcome.report.raw["waits"]["spun"] > 100, outcome.describe()
