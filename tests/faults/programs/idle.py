"""Connections that were busy and are quiet now: what they keep of memory."""

import functools
import os
import re
import resource
import select
import signal
import socket
import time

import ends
from ends import exactly, main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

SMALL_CALLS = 40
BULK_BYTES = 1 << 20
PAGE_KIB = 4


def segments_kib(pids):
    """(mapped segments, KiB of memory in them), counted once however many processes map them."""
    count, kib = 0, 0.0
    for pid in pids:
        with open(f"/proc/{pid}/smaps", encoding="utf-8") as smaps:
            inside = False
            for line in smaps:
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    inside = "memfd:sdp-conn" in line
                    count += inside
                elif inside and line.startswith("Pss:"):
                    kib += float(line.split()[1])
    return count, kib


def settled_kib(pids):
    """The same once it stands still: a page that one process maps when it is read and the other has yet to map counts
    one and a half times."""
    before = segments_kib(pids)
    for _ in range(500):
        time.sleep(0.01)
        now = segments_kib(pids)
        if now == before:
            break
        before = now
    return before


def small(sock, i, first):
    """One connection's small messages: enough for its lane, one connection after the other."""
    for n in range(SMALL_CALLS):
        message = b"%08d%08d" % (i, n) * 4
        if first:
            sock.sendall(message)
            assert exactly(sock, 64) == message
        else:
            assert exactly(sock, 64) == message
            sock.sendall(message)


def bulk(sock, i):
    """As much as goes round the ring several times, both ways at once."""
    assert ends.bulk(sock, BULK_BYTES, i)


def wait_visibly(socks, how, milliseconds):
    """Sleeps where the library sees it; nothing comes."""
    if how == "epoll":
        with select.epoll() as waits:
            for sock in socks:
                waits.register(sock, select.EPOLLIN)
            assert waits.poll(milliseconds / 1000) == []
    elif how == "poll":
        waits = select.poll()
        for sock in socks:
            waits.register(sock, select.POLLIN)
        assert waits.poll(milliseconds) == []
    else:
        socks[0].setblocking(True)
        socks[0].setsockopt(
            socket.SOL_SOCKET,
            socket.SO_RCVTIMEO,
            (milliseconds * 1000).to_bytes(8, "little").rjust(16, b"\0"),
        )
        try:
            socks[0].recv(1)
            raise AssertionError("something came")
        except BlockingIOError:
            pass


@scenario
def memory(count, bulky, how, patience_s):
    """Small messages on all connections, bulk on some, silence, small messages again."""
    count, bulky = int(count), int(bulky)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 300, count + 300))
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(58)
        port = int.from_bytes(os.read(hear, 2), "big")
        socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for i, sock in enumerate(socks):
            small(sock, i, True)
        assert socks[0].recv(1) == b"b"
        for i, sock in enumerate(socks[:bulky]):
            bulk(sock, i)
        if how != "recv":
            waits = select.poll() if how == "poll" else select.epoll()
            for sock in socks:
                waits.register(sock, select.POLLIN)
            assert len(waits.poll()) == 1
        assert socks[0].recv(1) == b"s"
        for i, sock in enumerate(socks):
            small(sock, i, True)
        os._exit(0 if all(sock.recv(1) == b"" for sock in socks) else 1)
    lst = ends.listener()
    lst.listen(count)
    os.write(tell, lst.getsockname()[1].to_bytes(2, "big"))
    socks = [lst.accept()[0] for _ in range(count)]
    for i, sock in enumerate(socks):
        small(sock, i, False)
    pids = (os.getpid(), child)
    mapped, after_small = segments_kib(pids)
    socks[0].sendall(b"b")
    for i, sock in enumerate(socks[:bulky]):
        bulk(sock, i)
    after_bulk = settled_kib(pids)[1]
    # Given back within the silence that the environment asks for; a bound, not a measurement.
    end = time.monotonic() + float(patience_s)
    silent = after_bulk
    while silent > after_small + 2 * PAGE_KIB * bulky and time.monotonic() < end:
        wait_visibly(socks, how, 300)
        silent = segments_kib(pids)[1]
    socks[0].sendall(b"s")
    for i, sock in enumerate(socks):
        small(sock, i, False)
    for sock in socks:
        sock.shutdown(socket.SHUT_WR)
    return {
        "segments": mapped,
        "small_kib": after_small,
        "bulk_kib": after_bulk,
        "silent_kib": silent,
        "child": ends.reap(child),
    }


if __name__ == "__main__":
    main(TABLE)
