"""A process forks while another of its threads looks at a ring; a program asks to write and waits for that."""

import functools
import os
import select
import socket
import threading
import time

import ends
from ends import main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

SIZE = 100
WARM_ROUNDS = 100


def ask(sock, rounds):
    """Round trips."""
    for _ in range(rounds):
        sock.sendall(b"x" * SIZE)
        ends.exactly(sock, SIZE)


def answer(sock, rounds):
    """The other end: never waits in the library, so that it adds nothing to the waits that are counted."""
    left = rounds * SIZE
    while left:
        try:
            got = len(sock.recv(SIZE, socket.MSG_DONTWAIT))
        except BlockingIOError:
            os.sched_yield()
            continue
        if not got:
            return
        left -= got
        sock.sendall(b"x" * got)


@scenario
def fork_beside_a_spinner(rounds):
    """The child's round trips on a connection of its own; the other end is on another CPU."""
    here, there = sorted(os.sched_getaffinity(0))[:2]
    lst = ends.listener()
    peer = os.fork()
    if peer == 0:
        os.sched_setaffinity(0, {there})
        silent, _ = lst.accept()
        answer(silent, WARM_ROUNDS)
        asking, _ = lst.accept()
        answer(asking, int(rounds))
        os._exit(0)
    os.sched_setaffinity(0, {here})
    sock = socket.create_connection(lst.getsockname())
    ask(sock, WARM_ROUNDS)
    begun = time.process_time()
    threading.Thread(target=sock.recv, args=(1,), daemon=True).start()
    # Until it has been seen to spin, if it does: without the library it sleeps.
    end = time.monotonic() + 0.5
    while time.process_time() < begun + 0.05 and time.monotonic() < end:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        ask(socket.create_connection(lst.getsockname()), int(rounds))
        os._exit(0)
    return {"child": ends.reap(child), "peer": ends.reap(peer)}


def by_epoll(sock):
    """Asks to write, or to read, anew each time."""
    waiting = select.epoll()
    waiting.register(sock, 0)

    def wait(what):
        waiting.modify(sock, what)
        return [event for _, event in waiting.poll(10)]

    return wait


def by_poll(sock):
    """The same by `poll`."""
    waiting = select.poll()

    def wait(what):
        waiting.register(sock, what)
        return [event for _, event in waiting.poll(10_000)]

    return wait


def by_select(sock):
    """The same by `select`."""
    sets = {select.EPOLLIN: ([sock], []), select.EPOLLOUT: ([], [sock])}
    return lambda what: [what] if select.select(*sets[what], [], 10) == (*sets[what], []) else []


@scenario
def asks_to_write(rounds, how):
    """Waits for what the kernel has at once, as programs do that ask before each write; and at the end for an answer."""
    lst = ends.listener()
    peer = os.fork()
    if peer == 0:
        silent, _ = lst.accept()
        answer(silent, WARM_ROUNDS + 1)
        os._exit(0)
    sock = socket.create_connection(lst.getsockname())
    ask(sock, WARM_ROUNDS)
    wait = {"epoll": by_epoll, "poll": by_poll, "select": by_select}[how](sock)
    writable = sum(wait(select.EPOLLOUT) == [select.EPOLLOUT] for _ in range(int(rounds)))
    sock.sendall(b"x" * SIZE)
    return {"writable": writable, "answered": wait(select.EPOLLIN), "peer": ends.reap(peer)}


if __name__ == "__main__":
    main(TABLE)
