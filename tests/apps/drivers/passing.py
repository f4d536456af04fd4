"""A server that hands live connections to its children, and its client.

usage: passing.py server|client PORT

The server accepts two connections. It talks on the first, then passes it by SCM_RIGHTS, with bytes
unread, to a child that existed before; the second is a multiprocessing Listener's kind of
conversation in a child that was forked with it.
"""

import hashlib
import os
import socket
import sys

ROUNDS = 200
UNREAD = b"unread when the connection changed hands " * 50


def exactly(s, length):
    """Reads so many bytes."""
    parts = b""
    while len(parts) < length:
        part = s.recv(length - len(parts))
        if not part:
            raise EOFError(len(parts))
        parts += part
    return parts


def echo_rounds(s, rounds, length):
    """Echoes fixed messages."""
    for _ in range(rounds):
        s.sendall(exactly(s, length))


def heir(channel):
    """Gets the connection and goes on with it."""
    data, numbers, _, _ = socket.recv_fds(channel, 10, 1)
    with socket.socket(fileno=numbers[0]) as s:
        s.sendall(exactly(s, len(UNREAD)))
        echo_rounds(s, ROUNDS, 5000)
        while part := s.recv(65536):
            s.sendall(part)
    os._exit(0 if data == b"here" else 3)


def server(port):
    """Accepts two, passes one, forks with the other."""
    listener = socket.create_server(("127.0.0.1", port))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    child = os.fork()
    if child == 0:
        listener.close()
        ours.close()
        heir(theirs)
    theirs.close()
    first, _ = listener.accept()
    echo_rounds(first, ROUNDS, 100)
    # The client sends these without waiting; peeking leaves them unread.
    while len(first.recv(len(UNREAD), socket.MSG_PEEK)) < len(UNREAD):
        pass
    socket.send_fds(ours, [b"here"], [first.fileno()])
    first.close()
    assert os.waitpid(child, 0)[1] == 0

    second, _ = listener.accept()
    echo_rounds(second, ROUNDS, 100)
    # Both use the connection in turns: the child, then the parent.
    child = os.fork()
    if child == 0:
        echo_rounds(second, ROUNDS, 3000)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    echo_rounds(second, ROUNDS, 3000)
    while part := second.recv(65536):
        second.sendall(part)


def talk(s, rounds, length, digest):
    """The client's half of `echo_rounds`."""
    for i in range(rounds):
        message = (hashlib.sha512(b"%d" % i).digest() * (length // 64 + 1))[:length]
        s.sendall(message)
        back = exactly(s, length)
        assert back == message, i
        digest.update(back)


def client(port):
    """Talks to both connections' holders."""
    digest = hashlib.sha256()
    with socket.create_connection(("127.0.0.1", port)) as s:
        talk(s, ROUNDS, 100, digest)
        s.sendall(UNREAD)
        assert exactly(s, len(UNREAD)) == UNREAD
        talk(s, ROUNDS, 5000, digest)
        talk(s, 1, 200_000, digest)
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port)) as s:
        talk(s, ROUNDS, 100, digest)
        talk(s, 2 * ROUNDS, 3000, digest)
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""
    print(digest.hexdigest())


{"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]))
