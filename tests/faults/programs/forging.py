"""Somebody writes into a connection's segment while traffic runs.

Four processes: the *victim* with two connections, its *peer* on the forged one, an *innocent* peer
on the other, and the forger, who writes into the segment through the peer's memory. Whatever is
written, the victim does not crash, its innocent connection keeps every byte, and once the peer is
gone every call on the forged connection ends. Peer and victim may be of different users; then the peer
has nothing of the victim's but the segment, and a doorbell with its page.

In `relative` it is a child of the victim that writes into what the two share as a family.
"""

import ctypes
import functools
import os
import platform
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

import ends
from ends import exactly, main
from standin import (
    CONTROL, END_BYTES, ENDS, ENTRIES, HALF_BYTES, HALVES, LANE, INTENT, READ, SENT, SWITCHES, TAIL, TRUSTS,
)

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

# More words of a half. crates/sdp-shm/src/layout.rs asserts the same offsets when it is compiled.
ORIGIN, GATE = 8, 128
HEAD, FOLLOWED, READING, ACK = 384, 400, 404, 412
RECEIVE_ARM, SPACE_ARM = 512, 640
FORGE_S = 0.7
# Messages on an innocent connection while somebody else's is spoilt.
TURNS = 300
# Number of the system call.
PPOLL = {"x86_64": 271}.get(platform.machine(), 73)


def word(rng, near=None):
    """A value that a liar would choose."""
    choices = [0, 1, 2, 15, 16, 4096, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]
    if near is not None:
        choices += [near + d for d in (-65536, -16, -1, 1, 8, 16, 32, 4096, 262_144, 262_160)] * 2
    return (rng.choice(choices) if rng.random() < 0.8 else rng.getrandbits(64)) % (1 << 64)


class Mapping:
    """A mapping of a process, reached through its memory."""

    def __init__(self, pid, name, index=0):
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
            found = [line for line in maps if name in line][index]
        self.pid, self.range = pid, found.split()[0]
        self.base, self.end = (int(x, 16) for x in self.range.split("-"))
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


class Segment(Mapping):
    """A connection's segment."""

    def __init__(self, pid):
        super().__init__(pid, "memfd:sdp-conn")
        self.ring = (self.end - self.base - CONTROL) // 2

    def half(self, rng):
        return HALVES + rng.randrange(2) * HALF_BYTES


def side_of(sock):
    """Which end of its connection this is: side 0 has the smaller port. A half is named by its producer's side."""
    return int(sock.getpeername()[1] < sock.getsockname()[1])


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
    cursor, origin = segment.u64(half + rng.choice([TAIL, HEAD])), segment.u64(half + ORIGIN)
    at = (cursor - origin) % segment.ring
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


libc = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE = 1, 2


def forge_holes(segment, rng):
    """What a peer can still do to the file itself. Its size it cannot change."""
    fd = os.open(f"/proc/{segment.pid}/map_files/{segment.range}", os.O_RDWR)
    try:
        for size in (0, CONTROL, segment.end - segment.base + CONTROL):
            assert ends.outcome(os.ftruncate, fd, size) == "EPERM", "not sealed"
        for at, n in ((0, CONTROL), (CONTROL, segment.ring), (CONTROL + segment.ring, segment.ring)):
            if rng.random() < 0.5:
                mode = ctypes.c_int(KEEP_SIZE | PUNCH_HOLE)
                assert libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(n)) == 0
    finally:
        os.close(fd)


def forge_bells(segment, rng):
    """Sleepers, summary and bits of all bell pages that the peer has.

    It does not claim that nobody sleeps, which ends wake-ups as SIGSTOP would, and takes being the same user too.
    """
    with open(f"/proc/{segment.pid}/maps", encoding="utf-8") as maps:
        count = maps.read().count("memfd:sdp-bell")
    for index in range(count):
        page = Mapping(segment.pid, "memfd:sdp-bell", index)
        if rng.random() < 0.3:
            page.write(0, struct.pack("I", rng.randrange(1 << 16, 1 << 31)))
        else:
            at = rng.choice([128 + 8 * rng.randrange(8), 256 + 8 * rng.randrange(512)])
            page.write(at, struct.pack("Q", word(rng)))
        page.memory.close()


FORGERIES = {
    "tail": forge_cursor(TAIL),
    "origin": forge_cursor(ORIGIN),
    "head": forge_cursor(HEAD),
    "sent": forge_cursor(SENT),
    "gate": forge_u32(GATE),
    "lane": forge_u32(LANE, SWITCHES),
    "log": forge_log,
    "consumer": forge_u32(FOLLOWED, READING, TRUSTS, ACK, READ),
    "arms": forge_u32(RECEIVE_ARM, SPACE_ARM),
    "records": forge_records,
    "ends": forge_ends,
    "page": forge_page,
    "holes": forge_holes,
    "bells": forge_bells,
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

    return [threading.Thread(target=body, daemon=True) for body in (reader, writer)]


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
# What ends the use of a connection, as over TCP.
ENDINGS = {"EOF", "ECONNRESET", "EPIPE"}


def begin_use(sock, use="blocking"):
    """Threads that use a connection, and what ends each part of it."""
    results = {}
    threads = USES[use](sock, results)
    for thread in threads:
        thread.start()
    return threads, results


def assert_ended(threads, results, limit_s):
    """The use of a connection is over soon, by what may end it."""
    for thread in threads:
        thread.join(limit_s)
    hanging = [thread.name for thread in threads if thread.is_alive()]
    assert not hanging and set(results.values()) <= ENDINGS, f"{results}, hanging: {hanging}"


def use_innocent(sock, turn):
    """A message to an innocent peer, and its echo."""
    text = ends.stream(turn, 3000)
    sock.sendall(text)
    assert exactly(sock, 3000) == text, "the innocent connection lost bytes"


def attached(pid):
    """Whether a process has mapped a segment."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return "memfd:sdp-conn" in maps.read()


VICTIM_USER, PEER_USER = 54321, 54322


def become(uid):
    """Another user, as a login does it."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def has_of(pid):
    """Shared memory (by inode) and bells (by the kernel's number) that a process has."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        shared = {line.split()[4] for line in maps if "sdp-bell" in line or "sdp-stats" in line or "/dev/zero" in line}
    bells = set()
    for number in os.listdir(f"/proc/{pid}/fdinfo"):
        with open(f"/proc/{pid}/fdinfo/{number}", encoding="utf-8") as info:
            bells |= {line for line in info if line.startswith("eventfd-id")}
    return shared | bells


SIGNALS = set(signal.Signals) - {signal.SIGALRM, signal.SIGKILL, signal.SIGSTOP}


def hold_signals():
    """From now on signals wait, for all to see."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def signals_of(pid):
    """Signals that wait for a process, or a thread of it; but SIGPIPE, which calls of its own bring about."""
    waiting = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(("SigPnd:", "ShdPnd:")):
                    waiting |= int(line.split()[1], 16)
    return [number for number in range(1, 65) if waiting >> (number - 1) & 1 and number != signal.SIGPIPE]


def spawn(body, limit_s=25):
    """A child process that runs `body` and ends; its failure is told, and makes its exit status."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(limit_s)
        try:
            body()
        except BaseException as error:
            print(f"{body.__name__}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


@scenario
def forge(kind, use, seed, users="one"):
    rng = random.Random(f"{kind} {use} {seed}")
    ports = [ends.listener(), ends.listener()]
    hear, tell = os.pipe()

    def victim():
        if users == "two":
            become(VICTIM_USER)
        hold_signals()
        forged = socket.create_connection(ports[0].getsockname())
        innocent = socket.create_connection(ports[1].getsockname())
        ends.warm_up(forged, True)
        ends.warm_up(innocent, True)
        os.write(tell, b"v")
        threads, results = begin_use(forged, use)
        end = time.monotonic() + FORGE_S + 1
        turn = 0
        while time.monotonic() < end:
            turn += 1
            use_innocent(innocent, turn)
            time.sleep(0.002)
        assert_ended(threads, results, 6)
        # After the end, calls answer at once, and the descriptor closes.
        forged.setblocking(False)
        late = [ends.outcome(lambda: forged.recv(10)), ends.outcome(forged.send, b"x")]
        forged.close()
        innocent.close()
        assert len(results) == 2, f"{results}, late {late}"
        assert not signals_of("self"), signals_of("self")

    def peer():
        if users == "two":
            become(PEER_USER)
        hold_signals()
        sock, _ = ports[0].accept()
        ends.warm_up(sock, False)
        os.write(tell, b"p")
        begin_use(sock)
        time.sleep(20)

    def innocent():
        if users == "two":
            become(VICTIM_USER)
        sock, _ = ports[1].accept()
        ends.warm_up(sock, False)
        os.write(tell, b"i")
        ends.echo(sock)

    theirs = {body.__name__: spawn(body) for body in (peer, innocent, victim)}
    # What is forged are connections in use, not ones that earn their lanes.
    os.close(tell)
    warm = set()
    while len(warm) < len(theirs) and (said := os.read(hear, 1)):
        warm.add(said)
    assert len(warm) == len(theirs) and attached(theirs["peer"]), "no segment"
    segment = Segment(theirs["peer"])
    ends.settle(0.1)
    # Of one user they have each other's bells, of two the pages of the doorbells that each has for the other's user.
    common = has_of(theirs["victim"]) & has_of(theirs["peer"])
    end = time.monotonic() + FORGE_S
    while time.monotonic() < end:
        try:
            FORGERIES[kind](segment, rng)
        except (OSError, struct.error):
            break
        time.sleep(rng.choice([0, 0.0002, 0.002, 0.02]))
    signals = signals_of(theirs["peer"])
    # The peer goes; a crash of it would have been seen as another status.
    os.kill(theirs["peer"], signal.SIGKILL)
    codes = {name: ends.reap(pid) for name, pid in theirs.items()}
    return {"codes": codes, "common": len(common), "signals": signals}


# Family memory (crates/sdp-shm/src/family.rs): rows, the first one last, behind the other words of all bitmaps; the
# header; the slots of processes.
PROCESSES, SLOT_BYTES, ROW_BYTES, HEADER_BYTES = 1024, 16, 512, 128
HEADER = 2048 + PROCESSES * 255 * 8 + 16_384 * ROW_BYTES
SLOTS = HEADER + HEADER_BYTES
USED_ROWS, USED_SLOTS, NONCE = HEADER + 4, HEADER + 8, HEADER + 24
STATE_MASK, LIVE, USER = 3, 2, 8
SOURCE, SINK, HALF_WORDS = 64, 256, 20
# Rows that the victim's few connections may have.
ROWS_USED = 6


class Family(Mapping):
    """What relatives share of their connections."""

    def __init__(self, pid):
        super().__init__(pid, "/dev/zero")
        # Is it where it is thought to be?
        rows, slots = struct.unpack("II", self.read(USED_ROWS, 8))
        assert self.u64(NONCE) and 1 <= rows <= ROWS_USED and 1 <= slots <= 8, ("the header", rows, slots)
        assert self.in_use(), "no row in use"

    def in_use(self, user=None):
        """Rows of connections; of those whose lanes a process uses."""
        rows = [row for row in range(ROWS_USED) if self.u64(self.row(row)) & STATE_MASK == LIVE]
        return [row for row in rows if user in (None, self.u64(self.row(row) + USER) & 0xFFFFFFFF)]

    @staticmethod
    def row(index):
        return HEADER - (index + 1) * ROW_BYTES


def forge_family(what):
    def forge(memory, rng):
        row = memory.row(rng.randrange(ROWS_USED))
        half = row + rng.choice([SOURCE, SINK])
        if what == "words":
            at = half + 8 + 8 * rng.randrange(HALF_WORDS)
            memory.write(at, struct.pack("Q", word(rng, memory.u64(at))))
        elif what == "locks":
            # Held by somebody who is dead, or never was.
            gone = rng.choice([GONE, 0x3FFFFFFF, 0x7FFFFFFF])
            memory.write(half, struct.pack("I", gone | rng.choice([0, 1 << 31])))
        elif what == "row":
            at = row + rng.choice([0, 8, 12, 16, 24, 32, 40, 48])
            memory.write(at, struct.pack("I", word(rng) & 0xFFFFFFFF))
        elif what == "bitmap":
            at = SLOTS + rng.randrange(4) * SLOT_BYTES + 8
            memory.write(at, struct.pack("Q", word(rng)))
        else:
            at = HEADER + rng.choice([4, 8, 12, 16, 24, 32])
            memory.write(at, struct.pack("I", word(rng) & 0xFFFFFFFF))

    return forge


FAMILY = {what: forge_family(what) for what in ("words", "locks", "row", "bitmap", "header")}
GONE = 0


def use_a_later_one():
    """A connection that is made meanwhile works."""
    sock, child = ends.pair(lambda sock: sock.sendall(exactly(sock, 100)), warm=False)
    sock.sendall(b"o" * 100)
    assert exactly(sock, 100) == b"o" * 100, "a connection made later lost bytes"
    assert ends.reap(child) == 0
    sock.close()


def peer_of(victim, lst):
    """Runs a victim that connects, and uses the connection as it does; the victim's exit status."""
    pid = spawn(victim, 50)
    sock, _ = lst.accept()
    ends.warm_up(sock, False)
    threads, results = begin_use(sock)
    code = ends.reap(pid)
    # A sender before a closed window would wait out the kernel's FIN_WAIT2.
    ends.outcome(sock.shutdown, socket.SHUT_RDWR)
    assert_ended(threads, results, 20)
    return code


@scenario
def relative(kind, seed):
    """A child of the victim writes into family memory while traffic runs, then dies.

    The victim and the relative share what they know about their connections, so all of them may end; but each
    call does, and a process of another family notices nothing but an end.
    """
    global GONE
    rng = random.Random(f"{kind} {seed}")
    lst = ends.listener()
    hear, tell = os.pipe()

    def victim():
        global GONE
        sock = socket.create_connection(lst.getsockname())
        ends.warm_up(sock, True)
        assert ends.is_attached(), "not on its lane"
        GONE = os.fork()
        if GONE == 0:
            os._exit(0)
        assert ends.reap(GONE) == 0
        forger = os.fork()
        if forger == 0:
            signal.alarm(25)
            memory = Family("self")
            os.write(tell, b"b")
            end = time.monotonic() + FORGE_S
            while time.monotonic() < end:
                FAMILY[kind](memory, rng)
                time.sleep(rng.choice([0, 0.0002, 0.002]))
            os._exit(0)
        assert os.read(hear, 1) == b"b"
        threads, results = begin_use(sock)
        assert ends.reap(forger) == 0
        # Others of the process work: it makes them anew, or they are TCP.
        use_a_later_one()
        # Everything ends once the peer is told to.
        assert ends.outcome(sock.shutdown, socket.SHUT_RDWR) in (None, "ENOTCONN")
        assert_ended(threads, results, 20)

    return {"victim": peer_of(victim, lst)}


def name_in_locks(row, who, is_let_go, way):
    """A forger that keeps a process's name in the locks of a connection until it is told, and then lets them go."""
    memory = Family("self")
    way.setblocking(False)

    def write(value):
        for half in (SOURCE, SINK):
            memory.write(memory.row(row) + half, struct.pack("I", value))

    way.sendall(b"b")
    while ends.outcome(way.recv, 1) == "EAGAIN":
        write(who)
    while is_let_go:
        # Not once only: a word that is changed meanwhile is held for ever.
        write(0)
        time.sleep(0.001)


@scenario
def named_alive(name, end):
    """A child of the victim, which holds two of its connections, writes the name of a living process into the locks of
    one of them (`itself`: the victim, `init`, `forger`): that one comes to a stop, as if its user were stopped halfway.
    The other goes on, and so does a later one. Then the forger lets the locks go, or is killed and leaves its name in
    them: the calls go on. `kept`: the name stays there, and is one of somebody who lives: the connection is reset."""
    lst = ends.listener()
    tell = socket.socketpair()

    def victim():
        sock = socket.create_connection(lst.getsockname())
        ends.warm_up(sock, True)
        rows = Family("self").in_use(os.getpid())
        assert len(rows) == 1, rows
        innocent, child = ends.pair(ends.echo)
        forger = os.fork()
        if forger == 0:
            signal.alarm(30)
            who = {"itself": os.getppid(), "init": 1, "forger": os.getpid()}[name]
            name_in_locks(rows[0], who, end == "let go", tell[1])
            os._exit(0)
        threads, results = begin_use(sock)
        assert tell[0].recv(1) == b"b"
        for turn in range(TURNS):
            use_innocent(innocent, turn)
        use_a_later_one()
        tell[0].sendall(b"e")
        if end == "killed":
            ends.kill(forger)
        threads.append(threading.Thread(target=ends.outcome, args=(sock.shutdown, socket.SHUT_RDWR), daemon=True))
        threads[-1].start()
        # A lock that is kept costs twenty seconds.
        assert_ended(threads, results, 25 if end == "kept" else 10)
        if end == "let go":
            ends.kill(forger)
        if end == "kept":
            assert ends.reap(forger) == 0 and "ECONNRESET" in results.values(), results
        innocent.close()
        assert ends.reap(child) == 0

    return {"victim": peer_of(victim, lst)}


@scenario
def held_gate(how):
    """A living peer keeps the gates for ever, stopped or at work: each call ends, and others are not concerned."""
    sock, peer = ends.pair(ends.echo)
    segment = Segment("self")
    other, innocent = ends.pair(ends.echo)
    ends.settle()
    # The gate names its holder's side + 1.
    theirs = (side_of(sock) ^ 1) + 1
    if how == "stopped":
        os.kill(peer, signal.SIGSTOP)
    results = {}

    def use():
        """Everything that wants a gate: a hand-over, sends on the lane and off it, the end."""
        os.dup2(sock.fileno(), 0)
        sock.settimeout(10)
        for _ in range(3):
            results["send"] = ends.outcome(sock.send, b"x" * 1000)
        results["receive"] = ends.outcome(sock.recv, 10)
        results["shutdown"] = ends.outcome(sock.shutdown, socket.SHUT_RDWR)
        os.close(0)
        sock.close()

    def keep():
        for half in (HALVES, HALVES + HALF_BYTES):
            segment.write(half + GATE, struct.pack("I", theirs))

    done = threading.Event()

    def hold():
        while not done.wait(0.0001):
            keep()

    keep()
    holder = threading.Thread(target=hold)
    holder.start()
    user = threading.Thread(target=use)
    user.start()
    fine = True
    rounds = 0
    while user.is_alive() and rounds < 1 << 20:
        text = ends.stream(rounds, 2000)
        other.sendall(text)
        fine = exactly(other, 2000) == text and fine
        rounds += 1
        time.sleep(0.002)
    user.join()
    done.set()
    holder.join()
    other.close()
    os.kill(peer, signal.SIGCONT)
    os.kill(peer, signal.SIGKILL)
    codes = {"innocent": ends.reap(innocent), "peer": ends.reap(peer)}
    return {"fine": fine, **codes, "results": {call: str(given) for call, given in results.items()}}


def keep_in_the_kernel(segment, half):
    """Makes a reader look as if it read from the kernel and had not followed the switch yet; what makes it follow."""
    followed = struct.unpack("I", segment.read(half + FOLLOWED, 4))[0]
    segment.write(half + FOLLOWED, struct.pack("II", followed - 1, 1))
    return lambda: segment.write(half + FOLLOWED, struct.pack("II", followed, 0))


@scenario
def reader_stuck_in_the_kernel(trigger):
    """A ring is full, and its reader was stopped after it had said that it reads from the kernel and before it had
    followed the switch: the sender can neither write nor leave the lane. Without a bell nobody can ring for
    room. Once the reader goes on, a program that waits for "writable" is told, by an edge too."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    sock, child = ends.pair(lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    os.waitpid(child, os.WUNTRACED)
    sock.setblocking(False)
    waiter = ends.Waiter(sock, trigger, select.POLLOUT)
    waiter.wait(0)
    segment = Segment("self")
    let_go = keep_in_the_kernel(segment, HALVES + side_of(sock) * HALF_BYTES)
    sent, full = ends.fill(sock)
    # Nothing changes for now; whatever the program is told, it cannot send.
    futile = [ends.fill(sock)[0] for _ in range(3) if waiter.wait(0)]
    let_go()
    told = waiter.wait(30)
    more = ends.fill(sock)[0]
    ends.kill(child)
    return {"full": full, "sent": sent > 0, "futile": sum(futile), "told": told, "more": more > 0}


@scenario
def stuck_sender(why, wait):
    """A ring is full; the sender must leave it, and its reader was stopped where it does not let it go: that a call
    would fail again is nothing to be woken for. Once the reader goes on, or is gone, the sender hears of it."""

    def peer(sock):
        if why == "end":
            sock.shutdown(socket.SHUT_WR)
        os.kill(os.getpid(), signal.SIGSTOP)

    sock, child = ends.pair(peer)
    os.waitpid(child, os.WUNTRACED)
    segment = Segment("self")
    side = side_of(sock)
    let_go = keep_in_the_kernel(segment, HALVES + side * HALF_BYTES)
    if why == "pinned":
        segment.write(ENDS + (side ^ 1) * END_BYTES + INTENT, struct.pack("I", 1))
    if wait == "blocking":
        ended = []
        sender = threading.Thread(target=lambda: ended.append(ends.outcome(sock.sendall, bytes(64 << 20))))
        sender.start()
        asleep = sleeps(sender.native_id)
        let_go()
        ends.kill(child)
        sender.join(30)
        return {"asleep": asleep, "told": ended[0] in ("ECONNRESET", "EPIPE")}
    sock.setblocking(False)
    waiter = ends.Waiter(sock, wait, select.POLLOUT)
    waiter.wait(0)
    full = ends.fill(sock)[1]
    # What was news before that is told once.
    waiter.wait(0)
    ends.fill(sock)
    asleep = not any(waiter.wait(0) for _ in range(3))
    if why == "end":
        ends.kill(child)
    else:
        let_go()
    told = waiter.wait(30)
    more, end = ends.fill(sock)
    if why != "end":
        ends.kill(child)
    return {"full": full, "asleep": asleep, "told": told, "more": more > 0 or end in ("ECONNRESET", "EPIPE")}


def sleeps(thread):
    """Whether a thread of this process comes to sleep in the library's own wait."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
            if file.read().startswith(f"{PPOLL} "):
                return True
    return False


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


def meeting_place(sock):
    """The abstract name at which a connection's ends meet (docs/spec/shm.md, section 6)."""
    both = sorted(
        bytes(10) + b"\xff\xff" + socket.inet_aton(address) + struct.pack("!H", port)
        for address, port in (sock.getsockname(), sock.getpeername())
    )
    return b"\0sdp/3/" + b"".join(both)


@scenario
def taken_name():
    """Another user sits at the meeting place first: nothing is told or given to him, and all works over TCP."""
    ours, theirs = socket.socketpair()
    stranger = os.fork()
    if stranger == 0:
        signal.alarm(50)
        ours.close()
        become(PEER_USER)
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        taken.bind(theirs.recv(100))
        taken.listen(64)
        theirs.sendall(b"b")
        guests = []
        waiter = select.poll()
        waiter.register(taken, select.POLLIN)
        waiter.register(theirs, select.POLLIN)
        while not any(fd == theirs.fileno() for fd, _ in waiter.poll()):
            guests.append(taken.accept()[0])
        got = []
        for guest in guests:
            with guest:
                try:
                    data, given, _, _ = guest.recvmsg(4096, socket.CMSG_SPACE(64))
                    got.append((len(data), len(given)))
                except ConnectionError:
                    got.append((0, 0))
        print(f"guests: {got}", file=sys.stderr, flush=True)
        os._exit(0 if guests and set(got) == {(0, 0)} else 1)
    theirs.close()
    sock, peer = ends.pair(ends.echo, warm=False)
    ours.sendall(meeting_place(sock))
    assert ours.recv(1) == b"b"
    fine = True
    for i in range(600):
        text = ends.stream(i, 1 + i % 2000)
        sock.sendall(text)
        fine = exactly(sock, len(text)) == text and fine
    attached = ends.is_attached()
    ours.close()
    sock.shutdown(socket.SHUT_WR)
    fine = sock.recv(1) == b"" and fine
    return {"fine": fine, "attached": attached, "stranger": ends.reap(stranger), "peer": ends.reap(peer)}


if __name__ == "__main__":
    main(TABLE)
