"""A server that forks for each connection, and its client, for the counters to be added up.

usage: forks.py CASE…

Each CASE is MESSAGES:END. The client exchanges so many messages of LENGTH bytes on a connection of its own; the
server's child echoes them and then ends by END: `exit`, `kill` (SIGKILL by its own hand), `execute` (/bin/true),
`fail` (executes what is not there, then echoes one more message), `heir` (a child of its own echoes the second half),
`two` (two numbers for the connection), `setuid` (another user before the last message). One line of JSON says what was moved.
"""

import json
import os
import signal
import socket
import sys

LENGTH = 10
OTHER_USER = 65534


def exactly(s):
    """One message."""
    parts = b""
    while len(parts) < LENGTH:
        part = s.recv(LENGTH - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def echo(s, count):
    """So many messages back."""
    for _ in range(count):
        s.sendall(exactly(s))


def serve(s, count, end):
    """The child of one connection."""
    if end == "heir":
        echo(s, count // 2)
        heir = os.fork()
        if heir == 0:
            echo(s, count - count // 2)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(heir, 0)[1]))
    if end == "two":
        s = (s.dup(), s)[0]
    echo(s, count - 1)
    if end == "fail":
        try:
            os.execv("/nonexistent", ["x"])
        except FileNotFoundError:
            pass
    if end == "setuid":
        os.setuid(OTHER_USER)
    echo(s, 1)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "execute":
        os.execv("/bin/true", ["true"])
    os._exit(0)


def talk(address, cases):
    """The client: one connection after the other."""
    for count, _ in cases:
        with socket.create_connection(address) as s:
            for i in range(count):
                s.sendall(bytes([i % 251]) * LENGTH)
                assert exactly(s) == bytes([i % 251]) * LENGTH
            assert s.recv(1) == b""


def main():
    """Both, and the sums."""
    signal.alarm(50)
    cases = [(int(n), end) for n, _, end in (word.partition(":") for word in sys.argv[1:])]
    listener = socket.create_server(("127.0.0.1", 0))
    client = os.fork()
    if client == 0:
        address = listener.getsockname()
        listener.close()
        talk(address, cases)
        os._exit(0)
    processes = 2
    for count, end in cases:
        s, _ = listener.accept()
        child = os.fork()
        if child == 0:
            listener.close()
            serve(s, count, end)
        s.close()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (-signal.SIGKILL if end == "kill" else 0), (count, end, code)
        processes += (end != "execute") + (end == "heir")
    assert os.waitpid(client, 0)[1] == 0
    moved = 2 * LENGTH * sum(count for count, _ in cases)
    print(json.dumps({"ends": 2 * len(cases), "moved": moved, "processes": processes}))


main()
