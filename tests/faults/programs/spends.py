"""What a lane spends of what a program has few of, and what is left for the program."""

import ctypes
import functools
import os
import resource
import select
import signal
import socket

import ends
from ends import drain, echo, exactly, main, pair

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
LIBC = ctypes.CDLL(None, use_errno=True)


class Entry(ctypes.Structure):
    """`struct pollfd`."""

    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def poll(entries, n, limit_ms):
    """The first `n` entries by `poll`: the result, or the error's word, and what was found where."""
    found = LIBC.poll(entries, ctypes.c_ulong(n), limit_ms)
    if found < 0:
        return ends.name(OSError(ctypes.get_errno(), ""))
    return [found] + [(i, entries[i].revents) for i in range(n) if entries[i].revents]


def limit_descriptors(n):
    """At most so many, of those to come."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@scenario
def poll_to_the_limit(n, used):
    """`poll` of as many entries as the limit allows, of one more, and of one less. The entries beside the connection's are
    unused, or all of them are the connection's."""
    n = int(n)
    sock, child = pair(echo)
    entries = (Entry * (n + 1))(*[Entry(-1 if used == "one" else sock.fileno(), select.POLLIN, 0)] * (n + 1))
    entries[n // 2].fd = sock.fileno()
    limit_descriptors(n)
    seen = {"nothing": poll(entries, n, 50)}
    sock.sendall(b"x")
    # One for the wait, one for the look at what is there.
    seen["a byte"] = [poll(entries, n, 5000), poll(entries, n, 0)]
    seen["less"], seen["more"] = poll(entries, n - 1, 5000), poll(entries, n + 1, 0)
    seen["read"] = sock.recv(10).decode()
    entries[n // 2].events = select.POLLOUT
    seen["room"] = poll(entries, n, 5000)
    limit_descriptors(100)
    sock.shutdown(socket.SHUT_WR)
    return {**seen, "end": drain(sock, b""), "child": ends.reap(child)}


@scenario
def waits_below_the_limit(n):
    """A process whose limit of descriptors is lower than the numbers that it has: calls that wait."""
    sock, child = pair(echo)
    high, other = pair(echo)
    limit_descriptors(int(n))
    seen = {}
    for way in ("recv", "select", "both"):
        seen[way] = []
        for _ in range(3):
            sock.sendall(b"to and fro")
            if way != "recv":
                seen[way].append([len(found) for found in select.select([sock, high], [], [], 10)])
            if way == "both":
                seen[way].append([len(found) for found in select.select([sock, high], [sock], [high], 10)])
            seen[way].append(exactly(sock, 10).decode())
    seen["nobody"] = [len(found) for found in select.select([sock, high], [], [], 0.05)]
    text = ends.stream(5, 400_000)
    thread = ends.threading.Thread(target=sock.sendall, args=(text,)) if int(n) else None
    if thread:
        thread.start()
        seen["bulk"] = exactly(sock, len(text)) == text
        thread.join()
    sock.shutdown(socket.SHUT_WR)
    high.shutdown(socket.SHUT_WR)
    seen["end"] = [drain(one, b"") for one in (sock, high)]
    limit_descriptors(100)
    return {**seen, "children": [ends.reap(child), ends.reap(other)]}


@scenario
def dumps(where, count):
    """A server with connections crashes after it has wiped what it sent."""
    secret = bytearray(b"secret-of-a-user" * 4096)
    found, children = [], []

    def sink(sock):
        while sock.recv(1 << 20):
            pass

    for _ in range(int(count)):
        sock, child = pair(sink)
        for _ in range(20):
            sock.sendall(secret)
        found.append(sock)
        children.append(child)
    has_lanes = ends.is_attached()
    secret[:] = bytes(len(secret))
    os.chdir(where)
    for child in children:
        os.kill(child, signal.SIGKILL)
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    print(f'{{"lanes": {int(has_lanes)}}}', flush=True)
    os.abort()


if __name__ == "__main__":
    main(TABLE)
