"""Somebody writes into a connection's segment while traffic runs.

Four processes: the *victim* with two connections, its *peer* on the forged one, an *innocent* peer
on the other, and the forger, who writes into the segment through the peer's memory. Whatever is
written, the victim does not crash, its innocent connection keeps every byte, and once the peer is
gone every call on the forged connection ends.
"""

import functools
import os
import random
import re
import select
import signal
import socket
import struct
import sys
import threading
import time

import ends
from ends import exactly, main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

# Offsets in the control page (crates/sdp-shm/src/layout.rs).
ENDS, END_BYTES = 128, 128
HALVES, HALF_BYTES = 384, 768
TAIL, SWITCHES = 0, 8
GATE, LANE, SENT, ENTRIES = 128, 132, 136, 144
HEAD, SCAN, FOLLOWED, READING, TRUSTS, ACK = 384, 392, 400, 404, 408, 412
RECEIVE_ARM, SPACE_ARM = 512, 640
CONTROL = 4096
FORGE_S = 0.7


def word(rng, near=None):
    """A value that a liar would choose."""
    choices = [0, 1, 2, 15, 16, 4096, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]
    if near is not None:
        choices += [near + d for d in (-65536, -16, -1, 1, 8, 16, 32, 4096, 262_144, 262_160)] * 2
    return (rng.choice(choices) if rng.random() < 0.8 else rng.getrandbits(64)) % (1 << 64)


class Segment:
    """A segment, reached through the memory of a process that has mapped it."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
            found = [line for line in maps if "memfd:sdp-conn" in line]
        start, end = (int(x, 16) for x in re.match(r"(\w+)-(\w+)", found[0]).groups())
        self.base, self.ring = start, (end - start - CONTROL) // 2
        self.memory = open(f"/proc/{pid}/mem", "r+b", buffering=0)

    def read(self, at, n):
        return os.pread(self.memory.fileno(), n, self.base + at)

    def write(self, at, data):
        try:
            os.pwrite(self.memory.fileno(), data, self.base + at)
        except OSError:
            pass  # the process is gone, and the mapping with it

    def u64(self, at):
        return struct.unpack("Q", self.read(at, 8))[0]

    def half(self, rng):
        return HALVES + rng.randrange(2) * HALF_BYTES


def forge_cursor(field):
    def forge(segment, rng):
        at = segment.half(rng) + field
        segment.write(at, struct.pack("Q", word(rng, segment.u64(at))))

    return forge


def forge_u32(*fields):
    def forge(segment, rng):
        at = segment.half(rng) + rng.choice(fields)
        segment.write(at, struct.pack("I", word(rng) & 0xFFFFFFFF))

    return forge


def forge_log(segment, rng):
    """An entry, then the count that publishes it."""
    half = segment.half(rng)
    count = struct.unpack("I", segment.read(half + SWITCHES, 4))[0]
    entry = half + ENTRIES + 24 * (count % 8)
    tail, sent = segment.u64(half + TAIL), segment.u64(half + SENT)
    segment.write(entry, struct.pack("QQI", word(rng, sent), word(rng, tail), rng.choice([0, 1, 9])))
    segment.write(half + SWITCHES, struct.pack("I", (count + rng.choice([1, 1, 2, 9, -1])) % (1 << 32)))


def forge_records(segment, rng):
    """Record headers and message headers at the tail, and anywhere."""
    which = rng.randrange(2)
    ring = CONTROL + which * segment.ring
    half = HALVES + which * HALF_BYTES
    at = segment.u64(half + rng.choice([TAIL, HEAD])) % segment.ring
    if rng.random() < 0.3:
        at = rng.randrange(segment.ring // 16) * 16
    size = rng.choice([0, 1, 15, 16, 17, 4096, 16400, 1 << 20, 0xFFFFFFFF, rng.getrandbits(32)])
    data = struct.pack("II", size, rng.choice([0, 1, 2, 3, 0xFFFFFFFF]))
    if rng.random() < 0.6:
        # mid, flags, bufs, length, mseq, ack: as on the wire.
        data += bytes([rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 0x40, 0xFF]), rng.getrandbits(8)])
        data += struct.pack(
            "!HIII", rng.getrandbits(16), rng.choice([16, 20, size, 0, 1 << 31]) % (1 << 32),
            rng.getrandbits(32), rng.getrandbits(32),
        )
    segment.write(ring + at, data)


def forge_ends(segment, rng):
    at = ENDS + rng.randrange(2) * END_BYTES + rng.choice([0, 4, 8, 12, 16])
    segment.write(at, struct.pack("I", word(rng) & 0xFFFFFFFF))


def forge_page(segment, rng):
    n = rng.choice([1, 4, 8, 64, 1024])
    segment.write(rng.randrange(CONTROL - n), rng.randbytes(n))


FORGERIES = {
    "tail": forge_cursor(TAIL),
    "head": forge_cursor(HEAD),
    "sent": forge_cursor(SENT),
    "gate": forge_u32(GATE),
    "lane": forge_u32(LANE, SWITCHES),
    "log": forge_log,
    "consumer": forge_u32(FOLLOWED, READING, TRUSTS, ACK, SCAN),
    "arms": forge_u32(RECEIVE_ARM, SPACE_ARM),
    "records": forge_records,
    "ends": forge_ends,
    "page": forge_page,
}


def use_blocking(sock, results):
    """Reads and writes with blocking calls until each fails or ends."""

    def reader():
        try:
            while sock.recv(20_000):
                pass
            results["read"] = "EOF"
        except OSError as error:
            results["read"] = ends.name(error)

    def writer():
        text = b"v" * 30_000
        try:
            while True:
                sock.send(text[: random.choice([10, 1000, 30_000])])
        except OSError as error:
            results["write"] = ends.name(error)

    return [threading.Thread(target=reader), threading.Thread(target=writer)]


def use_polling(kind):
    """The same in one event loop, non-blocking."""

    def use(sock, results):
        def loop():
            sock.setblocking(False)
            epoll = kind == "epoll"
            waiter = select.epoll() if epoll else select.poll()
            waiter.register(sock, select.POLLIN | select.POLLOUT)
            while len(results) < 2:
                waiter.poll(0.2 if epoll else 200)
                for name, call in (
                    ("read", lambda: sock.recv(20_000)),
                    ("write", lambda: sock.send(b"v" * 5000)),
                ):
                    if name in results:
                        continue
                    try:
                        if call() == b"":
                            results[name] = "EOF"
                    except BlockingIOError:
                        pass
                    except OSError as error:
                        results[name] = ends.name(error)

        return [threading.Thread(target=loop)]

    return use


USES = {"blocking": use_blocking, "poll": use_polling("poll"), "epoll": use_polling("epoll")}


def attached(pid):
    """Whether a process has mapped a segment."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return "memfd:sdp-conn" in maps.read()


@scenario
def forge(kind, use, seed):
    rng = random.Random(f"{kind} {use} {seed}")
    ports = [ends.listener(), ends.listener()]

    def spawn(body):
        pid = os.fork()
        if pid == 0:
            signal.alarm(25)
            try:
                body()
            except BaseException as error:
                print(f"{body.__name__}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        return pid

    def victim():
        forged = socket.create_connection(ports[0].getsockname())
        innocent = socket.create_connection(ports[1].getsockname())
        ends.warm_up(forged, True)
        ends.warm_up(innocent, True)
        results = {}
        threads = USES[use](forged, results)
        for thread in threads:
            thread.start()
        end = time.monotonic() + FORGE_S + 1
        turn = 0
        while time.monotonic() < end:
            turn += 1
            text = ends.stream(turn, 3000)
            innocent.sendall(text)
            assert exactly(innocent, 3000) == text, "the innocent connection lost bytes"
            time.sleep(0.002)
        for thread in threads:
            thread.join(6)
        hanging = [thread.name for thread in threads if thread.is_alive()]
        # After the end, calls answer at once, and the descriptor closes.
        forged.setblocking(False)
        late = [ends.outcome(lambda: forged.recv(10)), ends.outcome(forged.send, b"x")]
        forged.close()
        innocent.close()
        allowed = {"EOF", "ECONNRESET", "EPIPE"}
        if hanging or not set(results.values()) <= allowed or len(results) != 2:
            raise AssertionError(f"{results}, hanging: {hanging}, late {late}")

    def peer():
        sock, _ = ports[0].accept()
        ends.warm_up(sock, False)
        results = {}
        for thread in use_blocking(sock, results):
            thread.start()
        time.sleep(20)

    def innocent():
        sock, _ = ports[1].accept()
        ends.warm_up(sock, False)
        while data := sock.recv(65536):
            sock.sendall(data)

    theirs = {body.__name__: spawn(body) for body in (peer, innocent, victim)}
    limit = time.monotonic() + 5
    while not attached(theirs["peer"]):
        assert time.monotonic() < limit, "no segment"
        time.sleep(0.01)
    segment = Segment(theirs["peer"])
    time.sleep(0.1)
    end = time.monotonic() + FORGE_S
    while time.monotonic() < end:
        try:
            FORGERIES[kind](segment, rng)
        except (OSError, struct.error):
            break
        time.sleep(rng.choice([0, 0.0002, 0.002, 0.02]))
    # The peer goes; a crash of it would have been seen as another status.
    os.kill(theirs["peer"], signal.SIGKILL)
    codes = {name: ends.reap(pid) for name, pid in theirs.items()}
    return {"codes": codes}


@scenario
def orphaned_gate(holder):
    """A process was killed while it held the gates: who goes on neither waits for it nor loses bytes."""
    text = ends.stream(21, 50_000)

    def peer(sock):
        sock.sendall(text)
        sock.recv(1)
        time.sleep(20)

    sock, child = ends.pair(peer)
    ends.settle()
    sock.sendall(b"g")
    segment = Segment("self")
    ends.kill(child)
    for half in (HALVES, HALVES + HALF_BYTES):
        segment.write(half + GATE, struct.pack("I", int(holder)))
    began = time.monotonic()
    os.dup2(sock.fileno(), 0)
    got = ends.drain(socket.socket(fileno=0), text)
    late = ends.writes_until_error(sock)
    return {"got": got, "late": late[1], "soon": time.monotonic() - began < 3}


if __name__ == "__main__":
    main(TABLE)
