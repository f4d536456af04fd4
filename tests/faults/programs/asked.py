"""A client that sends and parts while its server leaves the queue pair, and waits for the client's answer.

    asked.py serve PORT COUNT
    asked.py ask ADDRESS PORT WAY…

For each WAY a connection. The server sets SO_RCVLOWAT, which takes it off the queue pair. The client makes no call until its kernel
has what the server asks, then sends BYTES and parts: `close`, `shutdown` (and reads to the end), `exit` (of a process). The
server writes a line of JSON: for each connection what came, and how the stream ended. `refused` is another WAY: the client
shuts down what there is not, and goes on; its server does not leave. `at-once`: the client closes without waiting, so that its
end and what the server asks cross.
"""

import ctypes
import errno
import json
import os
import socket
import sys
import time

ROUNDS, SIZE = 40, 32
BYTES = b"the last words of a client"
# Bytes of a marker, where its kind stands, and the kind that asks (`guard.md`, G2).
MARKER, KIND, LEAVE = 48, 16, 4


def exactly(connection, count):
    got = b""
    while len(got) < count:
        part = connection.recv(count - len(got))
        assert part, "an end too early"
        got += part
    return got


def talk(connection, speaks_first):
    for _ in range(ROUNDS):
        if speaks_first:
            connection.sendall(b"-" * SIZE)
        assert exactly(connection, SIZE) == b"-" * SIZE
        if not speaks_first:
            connection.sendall(b"-" * SIZE)


def serve(port, count):
    listener = socket.create_server(("", port))
    found = []
    for _ in range(count):
        connection, _ = listener.accept()
        talk(connection, False)
        if exactly(connection, 1) == b"L":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        got, end = b"", "end"
        try:
            while part := connection.recv(4096):
                got += part
        except OSError as error:
            end = errno.errorcode[error.errno]
        connection.close()
        found.append([got.decode(), end])
    print(json.dumps(found))


def is_asked(connection):
    """Whether the kernel has LEAVE, behind other markers. libc's own function goes past the library, and takes nothing."""
    seen = ctypes.create_string_buffer(4096)
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
    count = ctypes.CDLL("libc.so.6").recv(connection.fileno(), seen, len(seen), flags)
    return LEAVE in (seen.raw[at + KIND] for at in range(0, count, MARKER))


def part(connection, way):
    connection.sendall(b"K" if way == "refused" else b"L")
    while way not in ("refused", "at-once") and not is_asked(connection):
        time.sleep(0.001)
    if way == "refused":
        for how in (7, -1):
            try:
                connection.shutdown(how)
                raise AssertionError("there is no such way")
            except OSError as error:
                assert error.errno == errno.EINVAL
    connection.sendall(BYTES)
    if way == "shutdown":
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    elif way == "exit":
        os._exit(0)
    connection.close()


def ask(address, port, *ways):
    for way in ways:
        child = os.fork() if way == "exit" else 0
        if child:
            assert os.waitpid(child, 0)[1] == 0
            continue
        connection = socket.create_connection((address, port))
        talk(connection, True)
        part(connection, way)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*map(int, sys.argv[2:]))
    else:
        ask(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
