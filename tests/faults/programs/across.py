"""A server that gives each message back, and a client that holds what it gets against what it sent.

Usage: across.py serve ADDRESS PORT blocking|epoll|fork CONNECTIONS | across.py ask ADDRESS PORT MESSAGES SIZE
       across.py relay ADDRESS PORT TO TO-PORT | across.py last ADDRESS PORT SIZE | across.py often ADDRESS PORT CONNECTIONS
A message is its length in four bytes, and bytes that its number chooses. The server ends after so many connections.
"""

import hashlib
import os
import select
import socket
import struct
import sys
import threading


def content(number, size):
    """The bytes of a message."""
    piece = hashlib.sha256(b"%d" % number).digest()
    return (piece * (size // len(piece) + 1))[:size]


def exactly(sock, count):
    """So many bytes; fewer at the end of the stream."""
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 18))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def family(address):
    """That of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def answer(sock):
    """Gives each message back."""
    while head := exactly(sock, 4):
        (size,) = struct.unpack(">I", head)
        sock.sendall(head + exactly(sock, size))
    sock.close()


def by_epoll(listener, connections):
    """The same for all connections from one thread that never blocks in a call but `epoll_wait`."""
    ready = select.epoll()
    listener.setblocking(False)
    ready.register(listener, select.EPOLLIN)
    socks, unsent = {}, {}
    while connections:
        for number, events in ready.poll():
            if number == listener.fileno():
                sock = listener.accept()[0]
                sock.setblocking(False)
                socks[sock.fileno()], unsent[sock.fileno()] = sock, b""
                ready.register(sock, select.EPOLLIN)
                continue
            assert not events & select.EPOLLERR, "an error that nobody made"
            sock = socks[number]
            if events & select.EPOLLIN:
                try:
                    part = sock.recv(1 << 16)
                except BlockingIOError:
                    part = None
                if part == b"":
                    ready.unregister(sock)
                    sock.close()
                    del socks[number]
                    connections -= 1
                    continue
                unsent[number] += part or b""
            if unsent[number]:
                try:
                    unsent[number] = unsent[number][sock.send(unsent[number]):]
                except BlockingIOError:
                    pass
            ready.modify(sock, select.EPOLLIN | (select.EPOLLOUT if unsent[number] else 0))


def serve(address, port, how, connections):
    """A server for so many connections."""
    listener = socket.create_server((address, int(port)), family=family(address),
                                    dualstack_ipv6=family(address) == socket.AF_INET6)
    if how == "epoll":
        return by_epoll(listener, int(connections))
    left = []
    for _ in range(int(connections)):
        sock = listener.accept()[0]
        if how == "fork":
            pid = os.fork()
            if pid == 0:
                listener.close()
                answer(sock)
                os._exit(0)
            sock.close()
            left.append(pid)
        else:
            left.append(threading.Thread(target=answer, args=(sock,)))
            left[-1].start()
    for one in left:
        if how == "fork":
            assert os.waitpid(one, 0)[1] == 0
        else:
            one.join()


def ask(address, port, messages, size):
    """A client: each message comes back as it was."""
    with socket.create_connection((address, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(int(messages)):
            message = struct.pack(">I", int(size)) + content(number, int(size))
            sock.sendall(message)
            assert exactly(sock, len(message)) == message, f"message {number} came back changed"
    print("well")


def last(address, port, size):
    """A client whose server is killed: it gets the messages back that were answered, and then the end of the stream, or a reset."""
    with socket.create_connection((address, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(1000):
            message = struct.pack(">I", int(size)) + content(number, int(size))
            sock.sendall(message)
            assert exactly(sock, len(message)) == message, f"message {number} came back changed"
        print("met", flush=True)
        try:
            assert exactly(sock, 1) == b""
        except ConnectionResetError:
            pass
    print("ended")


def often(address, port, connections):
    """A client that makes one connection after the other, and listens as often at other ports."""
    for _ in range(int(connections)):
        with socket.create_server(("0.0.0.0", 0)):
            ask(address, port, 20, 100)


def relay(address, port, to, to_port):
    """Passes one connection's bytes on, as a proxy in user space does."""
    with socket.create_server((address, int(port)), family=family(address)) as listener:
        near = listener.accept()[0]
    with near, socket.create_connection((to, int(to_port))) as far:
        ways = {near: far, far: near}
        while ways:
            for sock in select.select(list(ways), [], [])[0]:
                part = sock.recv(1 << 16)
                if part:
                    ways[sock].sendall(part)
                else:
                    ways.pop(sock).shutdown(socket.SHUT_WR)


{"serve": serve, "ask": ask, "last": last, "often": often, "relay": relay}[sys.argv[1]](*sys.argv[2:])
