"""Urgent data while the reader does not let the sender leave its lane: it waits, and never becomes ordinary data."""

import functools
import os
import select
import signal
import socket
import threading
import time

import ends
from ends import exactly, main
from forging import HALF_BYTES, HALVES, Segment, keep_in_the_kernel, side_of

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

BEFORE, BEHIND = b"before" * 100, b"behind" * 100


def reader(sock):
    """Stopped at first; then all in-band bytes, and the urgent one. By what it ends with it says what it got."""
    os.kill(os.getpid(), signal.SIGSTOP)
    poll = select.poll()
    poll.register(sock, select.POLLPRI)
    urgent = b""
    if poll.poll(10_000):
        urgent = sock.recv(1, socket.MSG_OOB)
    got = exactly(sock, 1 << 20)
    assert (urgent, got) == (b"!", BEFORE + BEHIND), (urgent, got)


@scenario
def refused(how, is_lane):
    """`how`: the sender may block, may not, or not in this call (dontwait). What it was told while the reader stood, and the reader's word."""
    sock, child = ends.pair(reader)
    os.waitpid(child, os.WUNTRACED)
    sock.sendall(BEFORE)
    let_go = lambda: None
    if is_lane == "lane":
        half = HALVES + side_of(sock) * HALF_BYTES
        let_go = keep_in_the_kernel(Segment("self"), half)
    flags = socket.MSG_OOB | (socket.MSG_DONTWAIT if how == "dontwait" else 0)
    sock.setblocking(how != "nonblocking")
    told = []
    thread = threading.Thread(target=lambda: told.append(ends.outcome(sock.send, b"!", flags)))
    thread.start()
    thread.join(0.3)
    first = list(told)
    let_go()
    thread.join(10)
    while told[-1] == "EAGAIN":
        time.sleep(0.001)
        told.append(ends.outcome(sock.send, b"!", flags))
    sock.setblocking(True)
    sock.sendall(BEHIND)
    sock.shutdown(socket.SHUT_WR)
    os.kill(child, signal.SIGCONT)
    return {"first": first, "told": told[-1], "child": ends.reap(child)}


if __name__ == "__main__":
    main(TABLE)
