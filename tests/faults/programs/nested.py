"""A set that is waited for itself: in another set, by poll or by select.

    nested.py WAY        outer, outer-edge, outer-once, poll, select

A peer sends a message when it is asked for one. After each message was received the set has to be silent, with and without
a wait on it, and has to be readable again with the next one. Prints one line of JSON: how often it was as expected.
"""

import json
import os
import select
import socket
import struct
import sys

ROUNDS, LIMIT_S, BRIEF_S = 300, 20, 0.002
WAY = sys.argv[1]
BITS = {"outer-edge": select.EPOLLET, "outer-once": select.EPOLLONESHOT}


def whole(sock, n):
    got = b""
    while len(got) < n:
        more = sock.recv(n - len(got))
        assert more
        got += more
    return got


def serve(listener):
    peer, _ = listener.accept()
    while asked := peer.recv(1):
        peer.sendall(asked * 100)


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        serve(listener)
        os._exit(0)
    sock = socket.create_connection(listener.getsockname())
    inner, outer = select.epoll(), select.epoll()
    inner.register(sock, select.EPOLLIN)
    # Sets that come and go leave nothing behind.
    others = [select.epoll() for _ in range(40)]
    for other in others:
        outer.register(other.fileno(), select.EPOLLIN)
    for other in others:
        other.close()
    outer.register(inner.fileno(), select.EPOLLIN | BITS.get(WAY, 0))
    array = select.poll()
    array.register(inner.fileno(), select.POLLIN)
    waits = {
        "poll": lambda limit_s: len(array.poll(limit_s * 1000)),
        "select": lambda limit_s: len(select.select([inner.fileno()], [], [], limit_s)[0]),
    }
    ready = waits.get(WAY, lambda limit_s: len(outer.poll(limit_s)))
    seen = {"readable": 0, "silent": 0, "behind": 0, "vain": 0}
    for i in range(ROUNDS):
        if WAY == "outer-once":
            outer.modify(inner.fileno(), select.EPOLLIN | BITS[WAY])
        sock.sendall(b"x")
        seen["readable"] += ready(LIMIT_S)
        # Half of the time without a wait on the set.
        if i % 2:
            assert inner.poll(LIMIT_S) == [(sock.fileno(), select.EPOLLIN)]
        assert whole(sock, 40) == b"x" * 40
        if WAY not in BITS:
            seen["behind"] += ready(BRIEF_S)
        assert whole(sock, 60) == b"x" * 60
        seen["silent"] += ready(BRIEF_S) == 0
        # A receive that sleeps in vain may not take the wake-up away from those who wait for the set.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1000))
        try:
            assert not sock.recv(1)
        except BlockingIOError:
            seen["vain"] += 1
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", LIMIT_S, 0))
    sock.close()
    os.waitpid(child, 0)
    print(json.dumps(seen))


main()
