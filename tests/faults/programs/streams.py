"""Streams of bytes over several connections.

    streams.py serve PORT CONNECTIONS COUNT          takes COUNT bytes of each of CONNECTIONS, and says that they are right
    streams.py ask HOST PORT CONNECTIONS COUNT HOW   sends them. HOW: block, poll, level, edge, asyncio; SIZE of a write behind a comma
"""

import asyncio
import hashlib
import select
import socket
import sys
import threading

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
    data = memoryview((PATTERN * (count // len(PATTERN) + 1))[:count])
    if how == "asyncio":
        asyncio.run(streams(host, port, connections, data, int(size)))
        return
    socks = [socket.create_connection((host, port)) for _ in range(connections)]
    each(push, [(sock, data, how, int(size)) for sock in socks])


def main():
    name, *words = sys.argv[1:]
    if name == "serve":
        serve(*map(int, words))
    else:
        host, port, connections, count, how = words
        ask(host, int(port), int(connections), int(count), how)


main()
