"""Sockets that become another connection: disconnected by `connect` with AF_UNSPEC, and used again."""

import ctypes
import functools
import select
import socket
import struct

import ends
from ends import drain, exactly, listener, main, outcome, settle

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_CONNECT = 42
# What the client sends on its first connection after the warm-up, and does not read.
LAST, UNREAD = b"the first server's" * 50, b"nobody reads this" * 50


def disconnect(sock, way):
    """`connect` with AF_UNSPEC: 0, or the error's number."""
    address = struct.pack("H14x", socket.AF_UNSPEC)
    if way == "raw":
        done = LIBC.syscall(SYS_CONNECT, sock.fileno(), address, len(address))
    else:
        done = LIBC.connect(sock.fileno(), address, len(address))
    return 0 if done == 0 else ctypes.get_errno()


def server(warm, unread):
    """A process that accepts one connection; (its port, its way): how that went, when it is over."""
    lst = listener()

    def body(way):
        sock, _ = lst.accept()
        lst.close()
        if warm:
            ends.warm_up(sock, False)
        if unread:
            sock.sendall(UNREAD)
        way.sendall(b"r")
        got, end, _ = drain(sock, b"")
        # What is sent then.
        way.sendall(repr([got, end, outcome(sock.send, b"x")]).encode().ljust(100))

    pid, way = ends.started(body)
    port = lst.getsockname()[1]
    lst.close()
    return port, way, pid


def answering():
    """A process that answers everything on one connection."""
    lst = listener()

    def body(way):
        sock, _ = lst.accept()
        lst.close()
        total = b""
        while data := sock.recv(65536):
            total += data
            sock.sendall(data)
        way.sendall(repr(total[:40]).encode().ljust(100))

    pid, way = ends.started(body)
    port = lst.getsockname()[1]
    lst.close()
    return port, way, pid


def report(way):
    return exactly(way, 100).decode().strip()


def talk(sock):
    """Something with the second server; whether it came back."""
    fine = True
    for i in range(60):
        message = b"second %d" % i
        fine = outcome(sock.send, message) == len(message) and exactly(sock, len(message)) == message and fine
    return fine


@scenario
def again(way, warm, unread, waits):
    """Another server, by the same number and by a duplicate."""
    warm, unread = warm == "warm", unread == "unread"
    first, one, pid_one = server(warm, unread)
    second, two, pid_two = answering()
    sock = socket.create_connection(("127.0.0.1", first))
    if warm:
        ends.warm_up(sock, True)
    exactly(one, 1)
    if waits == "epoll":
        epoll = select.epoll()
        epoll.register(sock, select.EPOLLIN)
        epoll.poll(0)
    settle()
    sock.sendall(LAST)
    settle()
    twin = sock.dup()
    said = [disconnect(sock, way), ends.readiness(sock)]
    said += [outcome(sock.send, b"none"), outcome(sock.recv, 10), outcome(sock.getpeername)]
    said.append(report(one))
    said.append(outcome(sock.connect, ("127.0.0.1", second)))
    said += [talk(twin), talk(sock)]
    if waits == "epoll":
        sock.sendall(b"wake")
        said += [[event for _, event in epoll.poll(5)], exactly(sock, 4).decode()]
        said += [[event for _, event in epoll.poll(0)]]
    twin.close()
    sock.shutdown(socket.SHUT_WR)
    said.append(exactly(sock, 1) == b"")
    sock.close()
    said.append(report(two))
    return {"said": said, "codes": [ends.reap(pid_one), ends.reap(pid_two)]}


@scenario
def listens(way):
    """The socket listens then, and accepts."""
    first, one, pid = server(True, True)
    sock = socket.create_connection(("127.0.0.1", first))
    ends.warm_up(sock, True)
    exactly(one, 1)
    settle()
    said = [disconnect(sock, way), report(one)]
    sock.listen(1)
    port = sock.getsockname()[1]

    def body(line):
        client = socket.create_connection(("127.0.0.1", port))
        ends.warm_up(client, True)
        client.sendall(b"last words")
        client.close()
        line.sendall(b"done".ljust(100))

    other, line = ends.started(body)
    got, _ = sock.accept()
    ends.warm_up(got, False)
    said += [exactly(got, 100).decode(), report(line)]
    return {"said": said, "codes": [ends.reap(pid), ends.reap(other)]}


@scenario
def accepted(way):
    """The end that accepted disconnects."""
    second, two, other = answering()
    lst = listener()

    def body(line):
        sock = socket.create_connection(lst.getsockname())
        lst.close()
        ends.warm_up(sock, True)
        got, end, _ = drain(sock, b"")
        line.sendall(repr([got, end, outcome(sock.send, b"x")]).encode().ljust(100))

    pid, line = ends.started(body)
    sock, _ = lst.accept()
    lst.close()
    ends.warm_up(sock, False)
    settle()
    sock.sendall(LAST)
    settle()
    said = [disconnect(sock, way), report(line)]
    said += [outcome(sock.connect, ("127.0.0.1", second)), talk(sock)]
    sock.close()
    return {"said": said + [report(two)], "codes": [ends.reap(pid), ends.reap(other)]}


@scenario
def child(who):
    """A fork child disconnects and connects; then `who` uses the number: the child, its parent, or both."""
    first, one, pid_one = server(True, True)
    second, two, pid_two = answering()
    sock = socket.create_connection(("127.0.0.1", first))
    ends.warm_up(sock, True)
    exactly(one, 1)
    settle()

    def body(line):
        said = [disconnect(sock, "libc"), outcome(sock.connect, ("127.0.0.1", second))]
        if who in ("child", "both"):
            said.append(talk(sock))
        line.sendall(repr(said).encode().ljust(100))

    pid, line = ends.started(body)
    said = [report(line), ends.reap(pid), report(one)]
    if who in ("parent", "both"):
        said.append(talk(sock))
    sock.close()
    return {"said": said + [report(two)], "codes": [ends.reap(pid_one), ends.reap(pid_two)]}


@scenario
def refused():
    """An attempt that fails, and another one to where something listens. (The kernel tells of the first twice.)"""
    second, two, pid = answering()
    sock = socket.socket()
    sock.setblocking(False)
    said = []
    for port in (9, second, second):
        said.append(sock.connect_ex(("127.0.0.1", port)))
        select.select([], [sock], [], 5)
        said.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    sock.setblocking(True)
    said.append(talk(sock))
    sock.close()
    return {"said": said + [report(two)], "codes": [ends.reap(pid)]}


@scenario
def listened():
    """A listener that is shut down connects; and a connection that is over is asked to listen, and to connect."""
    first, one, pid_one = answering()
    second, two, pid_two = answering()
    lst = listener()
    lst.shutdown(socket.SHUT_RDWR)
    said = [outcome(lst.connect, ("127.0.0.1", first)), talk(lst)]
    sock = socket.create_connection(("127.0.0.1", second))
    said.append(talk(sock))
    sock.shutdown(socket.SHUT_RDWR)
    said.append(report(two))
    settle()
    said += [outcome(sock.listen, 1), outcome(sock.connect, ("127.0.0.1", first)), outcome(sock.send, b"x")]
    said += [disconnect(sock, "libc"), outcome(sock.listen, 1)]
    client = socket.create_connection(sock.getsockname())
    got, _ = sock.accept()
    client.sendall(b"to whom")
    said.append(got.recv(7).decode())
    lst.close()
    return {"said": said + [report(one)], "codes": [ends.reap(pid_one), ends.reap(pid_two)]}


@scenario
def connected_already():
    """A second address without a disconnection is an error, and changes nothing."""
    first, one, pid = answering()
    second = listener()
    sock = socket.create_connection(("127.0.0.1", first))
    said = [talk(sock)]
    for _ in range(3):
        said += [outcome(sock.connect, second.getsockname()), talk(sock)]
    sock.close()
    return {"said": said + [report(one)], "codes": [ends.reap(pid)]}


if __name__ == "__main__":
    main(TABLE)
