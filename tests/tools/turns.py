"""Two processes with a connection on an SDP lane that wait on it each moment, as servers with timers do.

The child answers what it gets. The parent obeys lines of its standard input and prints one for each:
`turns N` has N messages answered, `block` reads nothing but standard input until the next line, `connect`
makes another connection. Everything is checked byte by byte.
"""

import os
import select
import socket
import sys

MOMENT_MS = 20
WARMING = 100


def exactly(s, length):
    """Reads so many bytes, waiting in `poll`."""
    waits = select.poll()
    waits.register(s, select.POLLIN)
    data = b""
    while len(data) < length:
        if waits.poll(MOMENT_MS):
            part = s.recv(length - len(data))
            if not part:
                raise EOFError(length)
            data += part
    return data


def child(port):
    """Answers until the other end closes."""
    s = socket.create_connection(("127.0.0.1", port))
    waits = select.poll()
    waits.register(s, select.POLLIN)
    while True:
        if waits.poll(MOMENT_MS):
            data = s.recv(1000)
            if not data:
                break
            s.sendall(data)


def turns(s, count):
    """So many messages and their answers."""
    for i in range(count):
        message = b"%08d" % i
        s.sendall(message)
        assert exactly(s, len(message)) == message


def main():
    """The parent."""
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        child(listener.getsockname()[1])
        return
    s = listener.accept()[0]
    turns(s, WARMING)
    print("ready", pid, flush=True)
    waits = select.poll()
    waits.register(s, select.POLLIN)
    waits.register(0, select.POLLIN)
    others = []
    is_blocked = False
    while True:
        if not is_blocked and not any(fd == 0 for fd, _ in waits.poll(MOMENT_MS)):
            continue
        # One byte at a time: what is left over would not be seen by poll.
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(0, 1)
            if not byte:
                return
            line += byte
        words = line.decode().split()
        if words[0] == "turns":
            turns(s, int(words[1]))
        elif words[0] == "connect":
            others.append(socket.create_connection(listener.getsockname()))
            others.append(listener.accept()[0])
        is_blocked = words[0] == "block"
        print(*words, flush=True)


main()
