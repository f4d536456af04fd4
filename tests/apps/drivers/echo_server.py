"""Echo servers in the ways Python programs are written.

usage: echo_server.py blocking|selectors|poll|asyncio|fork|pool|groups PORT
"""

import asyncio
import multiprocessing
import os
import select
import selectors
import signal
import socket
import sys
import threading

BUFFER = 65536


def listener(port):
    """A listening socket."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port))
    s.listen(64)
    return s


def echo(s):
    """Blocking calls until the end of the stream."""
    with s:
        while data := s.recv(BUFFER):
            s.sendall(data)


def blocking(port):
    """A thread per connection."""
    server = listener(port)
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()


def with_selectors(port):
    """One loop, non-blocking sockets, epoll; writes are queued when the peer is slow."""
    loop = selectors.DefaultSelector()
    server = listener(port)
    loop.register(server, selectors.EVENT_READ, None)
    while True:
        for key, events in loop.select():
            if key.data is None:
                s = server.accept()[0]
                s.setblocking(False)
                loop.register(s, selectors.EVENT_READ, bytearray())
                continue
            queue = key.data
            if events & selectors.EVENT_READ:
                data = key.fileobj.recv(BUFFER)
                if not data and not queue:
                    loop.unregister(key.fileobj)
                    key.fileobj.close()
                    continue
                queue += data
            if queue:
                try:
                    del queue[: key.fileobj.send(queue)]
                except BlockingIOError:
                    pass
            interest = selectors.EVENT_WRITE if queue else 0
            if len(queue) < 4 * BUFFER:
                interest |= selectors.EVENT_READ
            loop.modify(key.fileobj, interest, queue)


def with_poll(port):
    """One loop, blocking sockets, poll."""
    server = listener(port)
    sockets = {server.fileno(): server}
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            if number == server.fileno():
                s = server.accept()[0]
                sockets[s.fileno()] = s
                poll.register(s, select.POLLIN)
                continue
            # Small reads, so that a client that sends in bulk while it reads is never waited for.
            data = sockets[number].recv(4096)
            if data:
                sockets[number].sendall(data)
            else:
                poll.unregister(number)
                sockets.pop(number).close()


def with_asyncio(port):
    """Streams."""

    async def serve(reader, writer):
        while data := await reader.read(BUFFER):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


def forking(port):
    """A child per connection; the parent closes its copy at once."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = listener(port)
    while True:
        s = server.accept()[0]
        if os.fork() == 0:
            server.close()
            echo(s)
            os._exit(0)
        s.close()


def accept_and_echo(server):
    """A worker of the pool."""
    while True:
        echo(server.accept()[0])


def with_groups(server):
    """A worker that sets its groups first."""
    os.initgroups("root", 0)
    accept_and_echo(server)


def pool(port, worker=accept_and_echo):
    """Workers that accept from one listener (multiprocessing)."""
    server = listener(port)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=worker, args=(server,)) for _ in range(3)]
    for worker in workers:
        worker.start()

    def end(*_):
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        signal.pause()


KINDS = {
    "blocking": blocking,
    "selectors": with_selectors,
    "poll": with_poll,
    "asyncio": with_asyncio,
    "fork": forking,
    "pool": pool,
    "groups": lambda port: pool(port, with_groups),
}

KINDS[sys.argv[1]](int(sys.argv[2]))
