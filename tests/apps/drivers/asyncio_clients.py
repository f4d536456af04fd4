"""Eight asyncio clients at once; prints a checksum for each. usage: asyncio_clients.py PORT"""

import asyncio
import hashlib
import sys

CLIENTS = 8
BULK = 2_000_000


def pattern(length, seed):
    """Bytes that differ for each seed."""
    block = hashlib.sha512(str(seed).encode()).digest()
    return (block * (length // len(block) + 1))[:length]


async def client(number):
    """Messages in turn, then a bulk that is sent while it is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    digest = hashlib.sha256()
    for i in range(200):
        message = pattern(1 + (i * number * 37) % 3000, (number, i))
        writer.write(message)
        await writer.drain()
        back = await reader.readexactly(len(message))
        assert back == message, (number, i)
        digest.update(back)
    bulk = pattern(BULK, number)
    writer.write(bulk)
    sending = asyncio.create_task(writer.drain())
    back = await reader.readexactly(BULK)
    await sending
    assert back == bulk, number
    digest.update(back)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    return digest.hexdigest()


async def main():
    """All at once."""
    print("\n".join(await asyncio.gather(*[client(n) for n in range(1, CLIENTS + 1)])))


asyncio.run(main())
