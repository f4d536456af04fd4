"""asyncio streams on uvloop: an echo server, and clients of one loop that talk to it at once.

usage: uv.py server|client PORT
"""

import asyncio
import hashlib
import signal
import sys

import uvloop

BULK = 3_000_000
CLIENTS = 4
SMALL_ROUNDS = 100
LIMIT_S = 80


async def serve(port):
    """Echoes until SIGTERM; half-closed connections get their answer first."""

    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", port)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    server.close()


def pattern(length, seed):
    """Bytes that differ everywhere."""
    block = b"".join(hashlib.sha512(b"%d-%d" % (seed, i)).digest() for i in range(257))
    return (block * (length // len(block) + 1))[:length]


async def talk(port, seed):
    """Small messages, a bulk both ways at once, a half close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for i in range(SMALL_ROUNDS):
        message = pattern(1 + i * 37 % 3000, seed + i)
        writer.write(message)
        await writer.drain()
        assert await reader.readexactly(len(message)) == message, i
    data = pattern(BULK, seed)

    async def send():
        for at in range(0, BULK, 50_000):
            writer.write(data[at : at + 50_000])
            await writer.drain()
        writer.write_eof()

    sender = asyncio.create_task(send())
    back = await reader.read(-1)
    await sender
    writer.close()
    await writer.wait_closed()
    assert back == data
    return hashlib.sha256(back).hexdigest()


async def clients(port):
    """All clients' sums."""
    return await asyncio.gather(*(talk(port, seed) for seed in range(CLIENTS)))


def main():
    """One role."""
    role, port = sys.argv[1], int(sys.argv[2])
    assert uvloop.new_event_loop().__class__.__module__.startswith("uvloop")
    if role == "server":
        uvloop.run(serve(port))
    else:
        signal.alarm(LIMIT_S)
        print(*uvloop.run(clients(port)), sep="\n")


main()
