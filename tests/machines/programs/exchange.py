"""Both ends of an exchange that checks every byte, over blocking sockets or asyncio.

    exchange.py serve PORT [--family 6] [--async] [--fork]
    exchange.py ask ADDRESS PORT --rounds N --size BYTES [--connections C] [--async]
        [--pause-file F] [--hold F] [--pace S] [--pace-until F] [--until F] [--reads-first] [--in-turn]

Each request is four bytes of length, then so many bytes; the answer is the SHA-256 of the bytes, then
the bytes themselves. Behind the last answer the client ends its half, and the server answers with the
number of requests and ends, too. With `--pause-file` the client makes the file when all its connections
have a third of their rounds behind them, and they wait until it is gone. With `--hold` each connection
waits before a round as long as there is such a file. With `--pace` so many seconds
pass between two rounds from there on, until there is the file of `--pace-until`. With `--until` more
rounds than N follow as long as there is no such file. With `--reads-first`
it is the sending thread that waits, while the reading one (of blocking sockets) is in its receive. Of
several addresses behind commas each connection takes the next. With `--in-turn` a connection begins when
the one before has ended.
"""

import argparse
import asyncio
import hashlib
import itertools
import os
import random
import socket
import struct
import sys
import threading
import time

LIMIT_S = 100
UNTIL_LIMIT_S = 300


def take(connection, count):
    """So many bytes; fewer at the end of the stream."""
    parts = []
    while count:
        part = connection.recv(min(count, 65536))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve_one(connection):
    served = 0
    with connection:
        connection.settimeout(None)
        while True:
            head = take(connection, 4)
            if not head:
                break
            body = take(connection, struct.unpack("!I", head)[0])
            connection.sendall(hashlib.sha256(body).digest() + body)
            served += 1
        connection.sendall(struct.pack("!I", served))
    return served


def bodies(options, which):
    """The payload of each round, drawn from a fixed seed."""
    draw = random.Random(which)
    end = time.monotonic() + UNTIL_LIMIT_S
    for at in itertools.count():
        goes_on = options.until and not os.path.exists(options.until) and time.monotonic() < end
        if at >= options.rounds and not goes_on:
            return
        yield draw.randbytes(draw.randint(1, options.size))


class Pause:
    """Where all connections of a client wait for each other and for the end of the file."""

    def __init__(self, options):
        self.file, self.at, self.held = options.pause_file, options.rounds // 3, options.hold
        self.coming = options.connections
        self.lock = threading.Lock()

    def steps(self, at):
        """How long to sleep, again and again, before this round."""
        end = time.monotonic() + UNTIL_LIMIT_S
        while self.held and os.path.exists(self.held) and time.monotonic() < end:
            yield 0.02
        if not self.file or at != self.at:
            return
        with self.lock:
            self.coming -= 1
            if not self.coming:
                open(self.file, "w").close()
        end = time.monotonic() + LIMIT_S
        while (self.coming or os.path.exists(self.file)) and time.monotonic() < end:
            yield 0.02


def pace_s(options, at):
    is_over = options.pace_until and os.path.exists(options.pace_until)
    return options.pace if at >= options.rounds // 3 and not is_over else 0


def ask_one(options, which, pause):
    addresses = options.address.split(",")
    with socket.create_connection((addresses[which % len(addresses)], options.port)) as connection:
        served = 0
        for at, body in enumerate(bodies(options, which)):
            def rest(at=at):
                for step in pause.steps(at):
                    time.sleep(step)
                time.sleep(pace_s(options, at))

            def send(rest=rest, body=body):
                if options.reads_first:
                    rest()
                connection.sendall(struct.pack("!I", len(body)) + body)

            if not options.reads_first:
                rest()
            # Beside the reader: a large answer may begin before the request has been taken.
            sender = threading.Thread(target=send)
            sender.start()
            answer = take(connection, 32 + len(body))
            sender.join()
            assert answer[32:] == body and answer[:32] == hashlib.sha256(body).digest(), (which, at, len(answer))
            served = at + 1
        connection.shutdown(socket.SHUT_WR)
        end = take(connection, 5)
        assert end == struct.pack("!I", served), (served, end)


async def serve_async(reader, writer):
    served = 0
    try:
        while True:
            head = await reader.readexactly(4)
            body = await reader.readexactly(struct.unpack("!I", head)[0])
            writer.write(hashlib.sha256(body).digest() + body)
            await writer.drain()
            served += 1
    except asyncio.IncompleteReadError as end:
        assert not end.partial
    writer.write(struct.pack("!I", served))
    await writer.drain()
    writer.close()


async def ask_async(options, which, pause):
    addresses = options.address.split(",")
    reader, writer = await asyncio.open_connection(addresses[which % len(addresses)], options.port)
    served = 0
    for at, body in enumerate(bodies(options, which)):
        for step in pause.steps(at):
            await asyncio.sleep(step)
        await asyncio.sleep(pace_s(options, at))
        writer.write(struct.pack("!I", len(body)) + body)
        answer = await reader.readexactly(32 + len(body))
        assert answer[32:] == body and answer[:32] == hashlib.sha256(body).digest(), (which, at)
        served = at + 1
    writer.write_eof()
    assert await reader.read(5) == struct.pack("!I", served)
    writer.close()
    await writer.wait_closed()


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve")
    serve.add_argument("port", type=int)
    serve.add_argument("--family", type=int, default=4)
    serve.add_argument("--async", dest="is_async", action="store_true")
    serve.add_argument("--fork", action="store_true")
    ask = commands.add_parser("ask")
    ask.add_argument("address")
    ask.add_argument("port", type=int)
    ask.add_argument("--rounds", type=int, default=40)
    ask.add_argument("--size", type=int, default=2000)
    ask.add_argument("--connections", type=int, default=1)
    ask.add_argument("--pause-file")
    ask.add_argument("--hold")
    ask.add_argument("--pace", type=float, default=0)
    ask.add_argument("--pace-until")
    ask.add_argument("--until")
    ask.add_argument("--reads-first", action="store_true")
    ask.add_argument("--in-turn", action="store_true")
    ask.add_argument("--async", dest="is_async", action="store_true")
    options = parser.parse_args()
    if options.command == "ask":
        pause = Pause(options)
        if options.is_async:
            async def all_of_them():
                await asyncio.gather(*(ask_async(options, which, pause) for which in range(options.connections)))
            asyncio.run(asyncio.wait_for(all_of_them(), UNTIL_LIMIT_S if options.until else LIMIT_S))
        else:
            failed = []

            def guarded(which):
                try:
                    ask_one(options, which, pause)
                except BaseException as error:
                    failed.append(repr(error))
            threads = [threading.Thread(target=guarded, args=(which,)) for which in range(options.connections)]
            for thread in threads:
                thread.start()
                if options.in_turn:
                    thread.join()
            for thread in threads:
                thread.join()
            if failed:
                sys.exit("; ".join(failed))
        print("every byte")
        return
    family = socket.AF_INET6 if options.family == 6 else socket.AF_INET
    wildcard = "::" if options.family == 6 else "0.0.0.0"
    if options.is_async:
        async def forever():
            server = await asyncio.start_server(serve_async, wildcard, options.port, family=family)
            await server.serve_forever()
        asyncio.run(forever())
    listener = socket.create_server((wildcard, options.port), family=family)
    while True:
        connection, _ = listener.accept()
        if options.fork:
            if os.fork() == 0:
                listener.close()
                serve_one(connection)
                sys.stdout.flush()
                sys.exit(0)
            connection.close()
        else:
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


main()
