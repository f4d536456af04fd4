"""Connections between two ends, one of which resets them; what each call of the other end then says.

    told.py serve PORT BYTES COUNT         sends BYTES on each of COUNT, which are not read, and resets them
    told.py ask ADDRESS PORT BYTES CALLS…  a connection for each CALLS; makes them behind its reset, and prints what
                                             each says
    told.py wait PORT BYTES                waits until BYTES can be read, by FIONREAD, before it reads
    told.py push ADDRESS PORT BYTES        sends them, and waits for the end
"""

import errno
import fcntl
import select
import signal
import socket
import struct
import sys
import termios
import time

ROUNDS, NAP_S, WAIT_S = 100, 0.005, 10
LINGER = struct.pack("ii", 1, 0)
POLL = {"IN": select.POLLIN, "OUT": select.POLLOUT, "ERR": select.POLLERR, "HUP": select.POLLHUP, "RDHUP": select.POLLRDHUP}


def exchange(peers, begins):
    """A byte to and fro, for as long as the ends need to meet."""
    for _ in range(ROUNDS):
        for peer in peers if begins else []:
            peer.sendall(b"?")
        for peer in peers:
            assert peer.recv(1) == (b"!" if begins else b"?")
        for peer in [] if begins else peers:
            peer.sendall(b"!")
        time.sleep(NAP_S)


def serve(port, size, count):
    with socket.create_server(("", port), backlog=count) as listener:
        peers = [listener.accept()[0] for _ in range(count)]
    exchange(peers, False)
    for peer in peers:
        peer.sendall(bytes(size))
    for peer in peers:
        assert peer.recv(1) == b"."
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        peer.close()


def call(peer, what):
    if what == "send":
        return peer.send(b"x")
    if what == "error":
        return peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if what == "count":
        return struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, bytes(4)))[0]
    if what == "poll":
        poll = select.poll()
        poll.register(peer, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
        return " ".join(name for name, bit in POLL.items() for _, bits in poll.poll(0) if bits & bit)
    if what == "epoll":
        with select.epoll() as poll:
            poll.register(peer, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
            return " ".join(name for name, bit in POLL.items() for _, bits in poll.poll(0) if bits & bit)
    flags = socket.MSG_PEEK if what == "peek" else 0
    return len(peer.recv(int(what) if what.isdigit() else 1000, flags))


def ask(address, port, size, *each):
    pipes = []
    signal.signal(signal.SIGPIPE, lambda *_: pipes.append(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPIPE})
    peers = [socket.create_connection((address, port)) for _ in each]
    exchange(peers, True)
    # All that is sent is here before the reset, and the reset before the calls.
    while size and any(call(peer, "count") < min(size, 1024) for peer in peers):
        time.sleep(NAP_S)
    for peer in peers:
        peer.sendall(b".")
    time.sleep(0.3)
    for peer, calls in zip(peers, each, strict=True):
        peer.setblocking(False)
        for what in calls.split():
            try:
                says = call(peer, what)
            except OSError as error:
                says = errno.errorcode[error.errno]
            print(what, says, "SIGPIPE" * len(pipes))
            pipes.clear()


def wait(port, size):
    with socket.create_server(("", port)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * size)
        peer, _ = listener.accept()
    exchange([peer], False)
    end = time.monotonic() + WAIT_S
    while call(peer, "count") < size and time.monotonic() < end:
        time.sleep(NAP_S)
    print(call(peer, "count"))
    print(len(peer.recv(2 * size, socket.MSG_WAITALL)))


def push(address, port, size):
    peer = socket.create_connection((address, port))
    exchange([peer], True)
    peer.sendall(bytes(size))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)


if __name__ == "__main__":
    if sys.argv[1] == "wait":
        wait(*map(int, sys.argv[2:]))
    elif sys.argv[1] == "push":
        push(sys.argv[2], *map(int, sys.argv[3:]))
    elif sys.argv[1] == "serve":
        serve(*map(int, sys.argv[2:]))
    else:
        ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
