"""Connections that get their lanes while somebody sleeps on them, or while nobody does."""

import functools
import os
import socket
import struct
import sys
import threading
import time

import ends
from ends import Waiter, exactly, main, pair, until_asleep

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
TRIPS = 50
SIZE = 64
PATIENCE_S = 40
# Offset of `tcpi_bytes_sent` and `tcpi_bytes_retrans` in `struct tcp_info`, and its size up to there.
BYTES_SENT, BYTES_RETRANS, INFO_BYTES = 200, 208, 216


def receive(sock, waiter, n):
    """n bytes, waited for before each call, unless the call is the way to wait."""
    data = b""
    while len(data) < n:
        if waiter.way != "recv":
            waiter.wait(PATIENCE_S)
        data += sock.recv(n - len(data))
    return data


@scenario
def woken(way):
    """A thread sleeps on a young connection; another one sends until that has lanes; the peer answers for the
    first time."""

    def peer(sock):
        while not exactly(sock, SIZE).startswith(b"now"):
            pass
        sock.sendall(b"f" * SIZE)
        ends.echo(sock)

    sock, child = pair(peer, warm=False)
    waiter = Waiter(sock, way)
    got = []
    thread = threading.Thread(target=lambda: got.append(receive(sock, waiter, SIZE)), daemon=True)
    thread.start()
    until_asleep(os.getpid(), thread.native_id)
    # Over TCP there will be no lanes.
    for _ in range(200):
        sock.sendall(b"." * SIZE)
        if ends.is_attached():
            break
        time.sleep(0.001)
    for _ in range(10):
        sock.sendall(b"." * SIZE)
        time.sleep(0.001)
    sock.sendall(b"now".ljust(SIZE))
    thread.join(20)
    is_woken = not thread.is_alive()
    if is_woken:
        for trip in range(TRIPS):
            message = struct.pack("!I", trip) * (SIZE // 4)
            sock.sendall(message)
            got.append(receive(sock, waiter, SIZE) == message)
    sock.close()
    os.waitpid(child, 0)
    return {"woken": is_woken, "got": [str(item) for item in got]}


def handed_over(sock):
    """Bytes that the kernel has sent for this end, bells included."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    return [struct.unpack_from("@Q", info, at)[0] for at in (BYTES_SENT, BYTES_RETRANS)]


@scenario
def trips(way):
    """Round trips from the first byte on; what the kernels of both ends sent."""
    hear, tell = os.pipe()

    def peer(sock):
        waiter = Waiter(sock, way)
        for _ in range(TRIPS):
            sock.sendall(receive(sock, waiter, SIZE))
        exactly(sock, 1)
        os.write(tell, struct.pack("@QQ", *handed_over(sock)))

    sock, child = pair(peer, warm=False)
    waiter = Waiter(sock, way)
    for _ in range(TRIPS):
        sock.sendall(b"t" * SIZE)
        assert receive(sock, waiter, SIZE) == b"t" * SIZE
    own = handed_over(sock)
    sock.close()
    os.waitpid(child, 0)
    theirs = struct.unpack("@QQ", os.read(hear, 16))
    return {"carrier": sum(sent - again for sent, again in (own, theirs))}


if __name__ == "__main__":
    sys.exit(main(TABLE))
