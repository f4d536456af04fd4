"""Two processes and a connection between them, for the tools to look at.

usage: pair.py [MODE]

The parent listens, a child connects; they exchange messages until both directions are worth a lane,
then the child sends UNREAD bytes that nobody reads. `ready` is printed; at the end of standard input
the parent reads them, and both leave.

MODE `poll` or `epoll` waits so before each message; `exclusive` does it with EPOLLEXCLUSIVE;
`zerocopy` asks for notifications of copies before the first byte; `cat` answers through an executed
cat that has the connection as its standard input and output; `uring` prints what io_uring_setup says.
"""

import ctypes
import os
import select
import socket
import sys

ROUNDS = 200
LENGTH = 100
UNREAD = 5000
IO_URING_SETUP = 425
SO_ZEROCOPY = 60


def exactly(s, length):
    """Reads so many bytes."""
    while length:
        part = s.recv(length)
        if not part:
            raise EOFError(length)
        length -= len(part)


def waiter(s, mode):
    """What the parent calls before it reads."""
    if mode == "poll":
        waits = select.poll()
    elif mode in ("epoll", "exclusive"):
        waits = select.epoll()
    else:
        return lambda: None
    waits.register(s, select.POLLIN | (select.EPOLLEXCLUSIVE if mode == "exclusive" else 0))
    return waits.poll


def client(port, mode, done):
    """The child."""
    s = socket.socket()
    if mode == "zerocopy":
        s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    s.connect(("127.0.0.1", port))
    for _ in range(ROUNDS):
        s.sendall(b"x" * LENGTH)
        exactly(s, LENGTH)
    if mode == "cat":
        s.shutdown(socket.SHUT_WR)
        while s.recv(1000):
            pass
    else:
        s.sendall(b"q" * UNREAD)
        os.read(done, 1)
    s.close()


def main(mode):
    """The parent."""
    if mode == "uring":
        libc = ctypes.CDLL(None, use_errno=True)
        result = libc.syscall(ctypes.c_long(IO_URING_SETUP), ctypes.c_long(0), None)
        print(result, ctypes.get_errno(), flush=True)
        return
    listener = socket.create_server(("127.0.0.1", 0))
    done, finish = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(finish)
        client(listener.getsockname()[1], mode, done)
        sys.exit(0)
    os.close(done)
    s, _ = listener.accept()
    if mode == "cat":
        server = os.fork()
        if server == 0:
            os.dup2(s.fileno(), 0)
            os.dup2(s.fileno(), 1)
            s.close()
            os.execvp("cat", ["cat"])
        s.close()
        assert os.waitpid(server, 0)[1] == 0
    else:
        wait = waiter(s, mode)
        for _ in range(ROUNDS):
            wait()
            exactly(s, LENGTH)
            s.sendall(b"y" * LENGTH)
        print("ready", child, s.getsockname()[1], s.getpeername()[1], flush=True)
        sys.stdin.read()
        exactly(s, UNREAD)
        s.close()
    os.close(finish)
    assert os.waitpid(child, 0)[1] == 0


main(sys.argv[1] if len(sys.argv) > 1 else "plain")
