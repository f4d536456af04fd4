"""Streams of bytes over several connections.

    streams.py serve PORT CONNECTIONS COUNT          takes COUNT bytes of each of CONNECTIONS, and says that they are right
    streams.py ask HOST PORT CONNECTIONS COUNT HOW   sends them. HOW: block, poll, level, edge, asyncio; SIZE of a write behind a comma
    streams.py deaf PORT COUNT SENT                  sends SENT bytes with rests before it reads COUNT
    streams.py fill HOST PORT COUNT SENT             sends COUNT bytes, and reads SENT meanwhile
"""

import asyncio
import hashlib
import select
import socket
import sys
import threading
import time

PIECE = 128 * 1024
PATTERN = bytes(range(251)) * 4096


def take(sock, count):
    seen, got = hashlib.sha256(), 0
    while got < count:
        piece = sock.recv(PIECE)
        assert piece, got
        seen.update(piece)
        got += len(piece)
    sock.sendall(seen.digest())
    assert sock.recv(1) == b""
    sock.close()


def each(work, items):
    threads = [threading.Thread(target=work, args=item) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def serve(port, connections, count):
    listener = socket.create_server(("", port), backlog=connections)
    each(take, [(listener.accept()[0], count) for _ in range(connections)])


def push(sock, data, how, size):
    sock.setblocking(how == "block")
    wait = select.poll() if how == "poll" else select.epoll()
    wait.register(sock, select.POLLOUT | (select.EPOLLET if how == "edge" else 0))
    sent = 0
    while sent < len(data):
        try:
            sent += sock.send(data[sent : sent + size])
        except BlockingIOError:
            assert wait.poll(20_000 if how == "poll" else 20)
    sock.setblocking(True)
    finish(sock, data)


def finish(sock, data):
    digest = b""
    while len(digest) < 32:
        digest += sock.recv(32 - len(digest))
    assert digest == hashlib.sha256(data).digest()
    sock.close()


async def stream(host, port, data, size):
    reader, writer = await asyncio.open_connection(host, port)
    for at in range(0, len(data), size):
        writer.write(data[at : at + size])
        await writer.drain()
    assert await reader.readexactly(32) == hashlib.sha256(data).digest()
    writer.close()
    await writer.wait_closed()


async def streams(host, port, connections, data, size):
    await asyncio.gather(*[stream(host, port, data, size) for _ in range(connections)])


def ask(host, port, connections, count, how):
    how, size = how.split(",")
    data = data_of(count)
    if how == "asyncio":
        asyncio.run(streams(host, port, connections, data, int(size)))
        return
    socks = [socket.create_connection((host, port)) for _ in range(connections)]
    each(push, [(sock, data, how, int(size)) for sock in socks])


def exactly(sock, count):
    got = 0
    while got < count:
        piece = sock.recv(PIECE)
        assert piece == (PATTERN * 2)[got % len(PATTERN) :][: len(piece)] and piece, got
        got += len(piece)


def data_of(count):
    return memoryview((PATTERN * (count // len(PATTERN) + 1))[:count])


def meet(sock, first):
    """Short messages, until the ends have met."""
    for _ in range(300):
        if first:
            sock.sendall(b"?")
        assert sock.recv(1) == b"?"
        if not first:
            sock.sendall(b"?")


def deaf(port, count, sent):
    sock, _ = socket.create_server(("", port)).accept()
    meet(sock, False)
    data = data_of(sent)
    for at in range(0, sent, 16384):
        sock.sendall(data[at : at + 16384])
        time.sleep(0.001)
    exactly(sock, count)
    sock.sendall(b"!")
    assert sock.recv(1) == b""


def fill(host, port, count, sent):
    sock = socket.create_connection((host, port))
    meet(sock, True)
    reader = threading.Thread(target=exactly, args=(sock, sent))
    reader.start()
    sock.sendall(data_of(count))
    reader.join()
    assert sock.recv(1) == b"!"
    sock.close()


def main():
    name, *words = sys.argv[1:]
    if name == "serve":
        serve(*map(int, words))
    elif name == "deaf":
        deaf(*map(int, words))
    elif name == "fill":
        fill(words[0], *map(int, words[1:]))
    else:
        host, port, connections, count, how = words
        ask(host, int(port), int(connections), int(count), how)


main()
