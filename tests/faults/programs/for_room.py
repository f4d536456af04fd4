"""A sender that never blocks, and waits for room by readiness.

    for_room.py serve PORT REQUESTS COUNT PAUSE_S    answers REQUESTS requests, takes COUNT bytes, of which it rests behind each MiB
    for_room.py ask HOST PORT REQUESTS COUNT HOW     sends them, and says how often it was refused and woken. HOW: poll, select,
        level, edge, oneshot (all epoll) or asyncio
"""

import asyncio
import hashlib
import json
import select
import socket
import sys
import time

SIZE = 100
PIECE = 64 * 1024
MUCH = bytes(range(251)) * 8192


def take(sock, count):
    got = b""
    while len(got) < count:
        piece = sock.recv(count - len(got))
        assert piece, len(got)
        got += piece
    return got


def serve(port, requests, count, pause_s):
    listener = socket.create_server(("", port))
    sock, _ = listener.accept()
    for _ in range(requests):
        sock.sendall(take(sock, SIZE))
    seen, got, rested = hashlib.sha256(), 0, 0
    while got < count:
        piece = sock.recv(PIECE)
        assert piece, got
        seen.update(piece)
        got += len(piece)
        if got >> 20 > rested:
            rested = got >> 20
            time.sleep(pause_s)
    sock.sendall(seen.digest())
    assert sock.recv(1) == b""


class Waiter:
    """Waits until a socket is writable."""

    def __init__(self, sock, how):
        self.sock, self.how, self.woken = sock, how, 0
        self.poll, self.epoll = select.poll(), select.epoll()
        self.poll.register(sock, select.POLLOUT)
        flags = {"edge": select.EPOLLET, "oneshot": select.EPOLLONESHOT}.get(how, 0)
        self.events = select.EPOLLOUT | flags
        if how in ("level", "edge", "oneshot"):
            self.epoll.register(sock, self.events)

    def wait(self):
        self.woken += 1
        if self.how == "poll":
            assert self.poll.poll(20_000)
        elif self.how == "select":
            assert select.select([], [self.sock], [], 20)[1]
        else:
            assert self.epoll.poll(20)
            if self.how == "oneshot":
                self.epoll.modify(self.sock, self.events)


def push(sock, data, how):
    sock.setblocking(False)
    waiter, sent, refused = Waiter(sock, how), 0, 0
    # As programs do: what waits is known before the first byte.
    waiter.wait()
    while sent < len(data):
        try:
            sent += sock.send(data[sent : sent + PIECE])
        except BlockingIOError:
            refused += 1
            waiter.wait()
    sock.setblocking(True)
    return {"refused": refused, "woken": waiter.woken}


async def stream(sock, data):
    reader, writer = await asyncio.open_connection(sock=sock)
    for at in range(0, len(data), PIECE):
        writer.write(data[at : at + PIECE])
        await writer.drain()
    digest = await reader.readexactly(32)
    writer.close()
    await writer.wait_closed()
    return digest


def ask(host, port, requests, count, how):
    sock = socket.create_connection((host, port))
    for _ in range(requests):
        sock.sendall(MUCH[:SIZE])
        take(sock, SIZE)
    data = memoryview((MUCH * (count // len(MUCH) + 1))[:count])
    counts = {}
    if how == "asyncio":
        digest = asyncio.run(stream(sock, data))
    else:
        counts = push(sock, data, how)
        digest = take(sock, 32)
    assert digest == hashlib.sha256(data).digest()
    print(json.dumps(counts), flush=True)


def main():
    name, *words = sys.argv[1:]
    if name == "serve":
        port, requests, count, pause_s = words
        serve(int(port), int(requests), int(count), float(pause_s))
    else:
        host, port, requests, count, how = words
        ask(host, int(port), int(requests), int(count), how)


main()
