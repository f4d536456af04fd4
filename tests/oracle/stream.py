"""Byte-stream oracle: both directions of one TCP connection, calls and sizes chosen by a seed.

For each seed: connects two processes over loopback and sends seeded random bytes both ways with a
seeded mix of calls (send, sendto, sendall, sendmsg, sendmmsg, os.write, os.writev, sendfile, splice; recv,
recvfrom, recv_into, recvmsg, recvmmsg, read, readv, peek first, wait-all; blocking, with timeout, non-blocking behind
poll, select or epoll in its trigger modes), by seeded holders (one process; a fork child; one process that sends and
one that receives; a parent and then its child; several descriptors; several threads one after the other; where asked for, a
server's child for each connection). Compares
every byte with what was meant to be sent and checks that what FIONREAD, poll and select promise can be read. Each
direction ends by shutdown, or the connection by a reset of either end at a random place, in the middle of what the
other sends. Where root plays, the two ends of every other seed or so are of users that it draws.
Exits 0 when every byte arrived, once, in order.

    stream.py SEED|FIRST-LAST [TOTAL_BYTES]
    stream.py SEED|FIRST-LAST TOTAL_BYTES serve|ask ADDRESS PORT    one end of each; the other is of another host
"""

import array
import ctypes
import errno
import fcntl
import os
import pathlib
import pwd
import random
import select
import socket
import struct
import sys
import tempfile
import termios
import threading
import time

# By itself: the tests' package asks for pytest.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import users as people  # noqa: E402

# What is imported when first needed, which another user might not be able to read.
"".encode("idna")
DEADLINE_S = int(os.environ.get("ORACLE_DEADLINE_S", "60"))
# Who has a connection: seeded among these.
HOLDERS = os.environ.get("ORACLE_HOLDERS", "one one threads child split handed numbers").split()
# Who has the server's connections before anything is sent: a child of its own for each.
PER_CONNECTION = "forks"
IS_BETWEEN_HOSTS = len(sys.argv) > 3
# By name, as programs find it: what is preloaded comes first.
LIBC = ctypes.CDLL(None, use_errno=True)


class Piece(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Header(ctypes.Structure):
    """`struct mmsghdr`, its message header flat."""

    _fields_ = [
        ("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32),
        ("pieces", ctypes.POINTER(Piece)), ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t), ("flags", ctypes.c_int),
        ("padding", ctypes.c_int), ("moved", ctypes.c_uint),
    ]


def several_messages(call, sock, buffers, *more):
    """sendmmsg or recvmmsg with a message for each buffer; the bytes moved of each message that was."""
    pieces = (Piece * len(buffers))()
    headers = (Header * len(buffers))()
    for piece, header, buffer in zip(pieces, headers, buffers):
        piece.base, piece.length = ctypes.addressof(buffer), ctypes.sizeof(buffer)
        header.pieces, header.count = ctypes.pointer(piece), 1
    done = call(sock.fileno(), headers, len(buffers), *more)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return [header.moved for header in headers[:done]]


def send_several(sock, data, flags):
    """`data` as two messages of one sendmmsg; how many bytes went, of the first without a gap."""
    half = len(data) // 2
    sizes = [half, len(data) - half]
    buffers = [(ctypes.c_char * n).from_buffer_copy(part) for n, part in zip(sizes, (data[:half], data[half:]))]
    moved = several_messages(LIBC.sendmmsg, sock, buffers, flags)
    if len(moved) == 2 and moved[0] < sizes[0]:
        raise AssertionError(f"sendmmsg went on behind a short message: {moved} of {sizes}")
    return sum(moved)


def receive_several(sock, n):
    """Up to two messages of one recvmmsg, which does not wait for the second; their bytes."""
    wait_for_one = 0x10000
    half = max(n // 2, 1)
    buffers = [(ctypes.c_char * half)(), (ctypes.c_char * max(n - half, 1))()][: 1 if n == 1 else 2]
    moved = several_messages(LIBC.recvmmsg, sock, buffers, wait_for_one, None)
    return b"".join(bytes(buffer[:count]) for buffer, count in zip(buffers, moved))


def splice_from_pipe(sock, data):
    """Up to a pipe's room of `data` by way of a pipe; how many bytes went, all that the pipe had. A connection that cannot be
    spliced (between hosts) has them by `send`, as programs do that are told so."""
    reads, writes = os.pipe()
    try:
        todo = os.write(writes, data[:4096])
        try:
            return os.splice(reads, sock.fileno(), todo)
        except OSError as error:
            if error.errno != errno.EINVAL or not IS_BETWEEN_HOSTS:
                raise
            return sock.send(data[:todo])
    finally:
        os.close(reads)
        os.close(writes)


def payload(seed, total):
    """The bytes that a seed stands for."""
    return random.Random(seed).randbytes(total)


class Waiter:
    """Waits for readiness in the way chosen; remembers what epoll wants remembered."""

    def __init__(self, rng, sock, events):
        self.sock = sock
        self.want = events
        self.kind = rng.choice(["poll", "select", "epoll-lt", "epoll-et", "epoll-oneshot"])
        if self.kind == "poll":
            self.poll = select.poll()
            self.poll.register(sock, select.POLLIN if events == "r" else select.POLLOUT)
        elif self.kind.startswith("epoll"):
            self.epoll = select.epoll()
            self.mask = select.EPOLLIN | select.EPOLLRDHUP if events == "r" else select.EPOLLOUT
            if self.kind == "epoll-et":
                self.mask |= select.EPOLLET
            if self.kind == "epoll-oneshot":
                self.mask |= select.EPOLLONESHOT
            self.epoll.register(sock, self.mask)
            self.is_first = True

    def wait(self):
        """Blocks until ready, or fails after the deadline."""
        if self.kind == "poll":
            ready = self.poll.poll(DEADLINE_S * 1000)
        elif self.kind == "select":
            r, w = ([self.sock], []) if self.want == "r" else ([], [self.sock])
            ready = any(select.select(r, w, [], DEADLINE_S))
        else:
            if self.kind == "epoll-oneshot" and not self.is_first:
                self.epoll.modify(self.sock, self.mask)
            self.is_first = False
            ready = self.epoll.poll(DEADLINE_S)
        if not ready:
            raise TimeoutError(f"{self.kind} for {self.want} never became ready")

    def close(self):
        if self.kind.startswith("epoll"):
            self.epoll.close()


def size(rng, top):
    """Sizes that like the edges of records, pages and rings."""
    shape = rng.random()
    if shape < 0.4:
        return rng.randint(1, 200)
    if shape < 0.6:
        return rng.choice([4095, 4096, 16383, 16384, 16385, 65536])
    return rng.randint(1, top)


def sender(sock, data, seed, mode, failures, who, part):
    """Sends the part (first, last) of `data`; with its end the direction's."""
    rng = random.Random(seed * 7 + 1 + part[0])
    try:
        waiter = Waiter(rng, sock, "w") if mode != "blocking" else None
        at, last = part
        view = memoryview(data)
        while at < last:
            n = min(size(rng, 200_000 if rng.random() < 0.2 else 9000), last - at)
            kind = rng.choice(
                ["send", "sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile", "sendall"]
            )
            if rng.random() < 0.002:
                kind = "splice"  # which takes the connection from its lane for good
            if rng.random() < 0.02:
                time.sleep(rng.random() * 0.003)
            try:
                if kind == "send":
                    sent = sock.send(view[at : at + n])
                elif kind == "sendto":
                    sent = sock.sendto(view[at : at + n], sock.getpeername())
                elif kind == "sendmmsg":
                    sent = send_several(sock, view[at : at + n], 0)
                elif kind == "splice":
                    sent = splice_from_pipe(sock, view[at : at + n])
                elif kind == "sendall" and mode == "blocking":
                    sock.sendall(view[at : at + n])
                    sent = n
                elif kind == "sendmsg":
                    cut = rng.randint(0, n)
                    sent = sock.sendmsg([view[at : at + cut], view[at + cut : at + n]])
                elif kind == "writev":
                    cut = rng.randint(0, n)
                    sent = os.writev(sock.fileno(), [view[at : at + cut], view[at + cut : at + n]])
                elif kind == "sendfile" and n > 1000 and rng.random() < 0.3:
                    with tempfile.TemporaryFile() as file:
                        file.write(view[at : at + n])
                        file.flush()
                        sent = os.sendfile(sock.fileno(), file.fileno(), 0, n)
                else:
                    sent = os.write(sock.fileno(), view[at : at + n])
            except (BlockingIOError, TimeoutError):
                if waiter is None:
                    raise
                waiter.wait()
                continue
            at += sent
        if waiter:
            waiter.close()
        if last == len(data):
            sock.shutdown(socket.SHUT_WR)
    except Exception as error:  # reported by the parent with the seed
        failures.append(f"{who} sender ({mode}): {error!r}")


def promise(rng, sock):
    """Asks, now and then, whether there is something to read; by which call there is, if there is."""
    if rng.random() > 0.15:
        return None
    if rng.random() < 0.6:
        count = array.array("i", [0])
        fcntl.ioctl(sock, termios.FIONREAD, count)
        return f"FIONREAD of {count[0]}" if count[0] else None
    if rng.random() < 0.5:
        return "select" if select.select([sock], [], [], 0)[0] else None
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return "poll" if poll.poll(0) else None


def receiver(sock, seed, mode, failures, who, theirs, part):
    """Receives the part (first, last) of `theirs`, and with its end the end of the stream."""
    rng = random.Random(seed * 11 + 5 + part[0])
    got, last = part
    woken = None
    try:
        waiter = Waiter(rng, sock, "r") if mode != "blocking" else None
        while got < last or last == len(theirs):
            n = size(rng, 100_000 if rng.random() < 0.2 else 9000)
            if last < len(theirs):
                n = min(n, last - got)
            kind = rng.choice(["recv", "from", "into", "msg", "several", "read", "peek", "all", "readv"])
            if rng.random() < 0.02:
                time.sleep(rng.random() * 0.003)
            promised = promise(rng, sock) or woken
            woken = None
            try:
                if promised:  # nobody else reads
                    sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                if kind == "recv":
                    data = sock.recv(n)
                elif kind == "from":
                    data = sock.recvfrom(n)[0]
                elif kind == "several":
                    data = receive_several(sock, n)
                elif kind == "into":
                    room = bytearray(n)
                    data = bytes(room[: sock.recv_into(room)])
                elif kind == "msg":
                    cut = rng.randint(0, n)
                    parts = [bytearray(cut), bytearray(n - cut)]
                    count = sock.recvmsg_into(parts)[0]
                    data = (bytes(parts[0]) + bytes(parts[1]))[:count]
                elif kind == "readv":
                    cut = rng.randint(0, n)
                    parts = [bytearray(cut), bytearray(n - cut)]
                    count = os.readv(sock.fileno(), parts)
                    data = (bytes(parts[0]) + bytes(parts[1]))[:count]
                elif kind == "peek":
                    seen = sock.recv(n, socket.MSG_PEEK)
                    data = sock.recv(len(seen)) if seen else b""
                    if data != seen[: len(data)]:
                        raise AssertionError("peek and recv differ")
                elif kind == "all":
                    n = min(n, len(theirs) - got) or 1
                    data = sock.recv(n, socket.MSG_WAITALL)
                    if mode == "blocking" and len(data) != n and got + len(data) != len(theirs):
                        raise AssertionError(f"MSG_WAITALL {len(data)} of {n}")
                else:
                    data = os.read(sock.fileno(), n)
            except (BlockingIOError, TimeoutError):
                if promised:
                    raise AssertionError(f"nothing to read after {promised}") from None
                if waiter is None:
                    raise
                waiter.wait()
                woken = waiter.kind
                continue
            if not data:
                if got < len(theirs):
                    raise AssertionError("the end came early")
                break
            if theirs[got : got + len(data)] != data:
                where = next(i for i, b in enumerate(data) if theirs[got + i : got + i + 1] != bytes([b]))
                again = theirs.find(data[where : where + 16])
                raise AssertionError(
                    f"{kind} of {n} gave {len(data)} bytes at {got}; wrong from {got + where}, "
                    f"that is position {again}"
                )
            got += len(data)
            # An edge-triggered reader goes on until EAGAIN: the loop does.
        if waiter:
            waiter.close()
    except Exception as error:  # reported by the parent with the seed
        failures.append(f"{who} receiver ({mode}) after {got}: {error!r}")


def receiver_by_count(sock, seed, failures, who, theirs, part):
    """As nginx receives: edge-triggered, trusting short reads, FIONREAD and EPOLLRDHUP to save calls."""
    rng = random.Random(seed * 13 + 7 + part[0])
    got, last = part
    count = array.array("i", [0])
    with select.epoll() as epoll:
        epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        is_ready, left, is_over = False, -1, False
        try:
            while got < last or last == len(theirs):
                if not is_ready or (left == 0 and not is_over):
                    events = epoll.poll(DEADLINE_S)
                    if not events:
                        raise TimeoutError(f"no event after {got}, {left} left as far as known")
                    is_ready, left = True, -1
                    is_over = is_over or bool(events[0][1] & select.EPOLLRDHUP)
                n = size(rng, 60_000)
                if last < len(theirs):
                    n = min(n, last - got)
                try:
                    data = sock.recv(n)
                except BlockingIOError:
                    is_ready = False
                    continue
                if not data:
                    break
                if theirs[got : got + len(data)] != data:
                    raise AssertionError(f"wrong bytes, of {len(data)} after {got}")
                got += len(data)
                if left >= 0:
                    left -= len(data)
                    if left < 0:  # what came since makes an event of its own
                        left, is_ready = 0, is_over
                elif len(data) == n:
                    fcntl.ioctl(sock, termios.FIONREAD, count)
                    left = count[0]
                if len(data) < n:
                    is_ready, left = is_over, 0
            if got != last:
                raise AssertionError("the end came early")
        except Exception as error:  # reported by the parent with the seed
            failures.append(f"{who} receiver by count after {got}: {error!r}")


def run_part(sock, who, seed, mode, mine, theirs, parts):
    """Sends and receives the parts (either may be None) in a thread each; the failures found."""
    failures = []
    threads = []
    for part, work in zip(parts, (sender, receiver)):
        if part:
            data = [mine] if work is sender else []
            more = [] if work is sender else [theirs]
            args = (sock, *data, seed, mode, failures, who, *more, part)
            if work is receiver and mode == "nonblocking" and seed % 2:
                work, args = receiver_by_count, (sock, seed, failures, who, theirs, part)
            threads.append(threading.Thread(target=work, args=args, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        if thread.is_alive():
            failures.append(f"{who}: a {mode} thread did not end")
    return failures


def run_relay(sock, who, seed, mode, mine, theirs, runners):
    """As `run_part` with the whole streams; each direction's thread ends and another goes on, some times."""
    failures = []

    def pass_on(work, data):
        cuts = sorted(random.Random(seed + len(data)).choices(range(len(data) + 1), k=runners - 1))
        for part in zip([0, *cuts], [*cuts, len(data)]):
            # An empty part that is not the end would not tell itself from the end.
            if part[0] < part[1] and not failures:
                thread = threading.Thread(target=work, args=(part,), daemon=True)
                thread.start()
                thread.join(DEADLINE_S)
                if thread.is_alive():
                    failures.append(f"{who}: a {mode} thread did not end")

    directions = [
        (lambda part: sender(sock, mine, seed, mode, failures, who, part), mine),
        (lambda part: receiver(sock, seed, mode, failures, who, theirs, part), theirs),
    ]
    chains = [threading.Thread(target=pass_on, args=both, daemon=True) for both in directions]
    for chain in chains:
        chain.start()
    for chain in chains:
        chain.join()
    return failures


def in_child(body, who):
    """Runs `body` in a fork child: a function that waits for it and gives the failures."""
    child = os.fork()
    if child == 0:
        failures = body()
        report(who, failures)
        os._exit(1 if failures else 0)
    return lambda: [] if os.waitpid(child, 0)[1] == 0 else [f"{who}: its child failed"]


def run_end(sock, who, seed, mine, theirs):
    """Sends `mine`, receives what should be `theirs`; the failures found."""
    rng = random.Random(seed * 3 + (who == "server"))
    mode = rng.choice(["blocking", "blocking", "timeout", "nonblocking"])
    if mode == "timeout":
        sock.settimeout(DEADLINE_S)
    elif mode == "nonblocking":
        sock.setblocking(False)
    whole = (0, len(mine)), (0, len(theirs))
    holders = rng.choice(HOLDERS)
    who = f"{who} ({holders})"

    def run(parts):
        return run_part(sock, who, seed, mode, mine, theirs, parts)

    if holders in ("one", PER_CONNECTION):
        return run(whole)
    if holders == "threads":
        return run_relay(sock, who, seed, mode, mine, theirs, rng.randint(2, 4))
    if holders == "child":
        done = in_child(lambda: run(whole), who)
        sock.close()
        return done()
    if holders == "split":
        done = in_child(lambda: run((whole[0], None)), who)
        return run((None, whole[1])) + done()
    # Both ends agree where a stream is cut, or each could wait for what the other sends in its second part.
    cuts = [random.Random(seed + len(data)).randrange(len(data)) for data in (mine, theirs)]
    first, second = zip(*(((0, cut), (cut, part[1])) for cut, part in zip(cuts, whole)))
    failures = run(first)
    if failures:
        return failures
    if holders == "handed":
        done = in_child(lambda: run(second), who)
        if rng.random() < 0.5:
            sock.close()
        return done()
    number = os.dup(sock.fileno())
    os.dup2(number, sock.fileno())  # the same socket: nothing changes
    other = socket.socket(fileno=number)
    other.settimeout(sock.gettimeout())
    sock.close()
    return run_part(other, who, seed, mode, mine, theirs, second)


def run_reset(sock, who, seed, mine, theirs):
    """One end sends a part and resets; the other sends what it has until it is told, reads a beginning, and then the reset."""
    rng = random.Random(seed)
    resets = rng.choice(["server", "client"])
    part = mine if who == resets else theirs
    part = part[: rng.randrange(len(part) + 1)]
    if who == resets:
        failures = run_part(sock, who, seed, "blocking", part + b"-", b"", ((0, len(part)), None))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        return failures

    told = []

    def send_all():
        try:
            at = 0
            while at < len(mine):
                at += sock.send(mine[at : at + rng.randint(1, 20_000)])
        except (ConnectionResetError, BrokenPipeError) as error:
            told.append(error)

    other = threading.Thread(target=send_all, daemon=True)
    if seed % 2:
        other.start()
    reader = random.Random(seed + 1)
    got = 0
    try:
        while data := sock.recv(reader.randint(1, 50_000)):
            if part[got : got + len(data)] != data:
                return [f"{who}: wrong bytes before a reset, after {got}"]
            got += len(data)
    except ConnectionResetError:
        told.append(None)
    if seed % 2:
        other.join(DEADLINE_S)
        if other.is_alive():
            return [f"{who}: a sender was never told of a reset"]
    # The kernel tells of a reset once: a sender that is told so leaves its reader an end.
    if any(not isinstance(error, BrokenPipeError) for error in told):
        return []
    return [f"{who}: an end where a reset was due, after {got} of {len(part)}, {told}"]


def greet(sock, seed, is_server):
    """Small round trips, so that most connections have their lanes before the streams begin, which are else sent at once."""
    for i in range(40 if seed % 4 else 0):
        if is_server:
            sock.sendall(bytes([i]))
        if sock.recv(1) != bytes([i]):
            raise AssertionError("a greeting came wrong")
        if not is_server:
            sock.sendall(bytes([i]))


def report(who, failures):
    for failure in failures:
        print(f"{who}: {failure}", file=sys.stderr, flush=True)


class Seed:
    """What a seed stands for, the same at both ends."""

    def __init__(self, seed, total):
        rng = random.Random(seed)
        self.seed = seed
        sizes = [rng.randint(1, total), rng.randint(1, total)]
        self.up, self.down = payload(seed, sizes[0]), payload(seed + 1_000_003, sizes[1])
        self.run = run_reset if rng.random() < 0.08 else run_end
        may_differ = random.Random(f"whether {seed}").random() < 0.5
        self.users = people.drawn(seed) if may_differ else (None, None)

    def serve(self, listener):
        """The server's end; true if all is well."""
        if not select.select([listener], [], [], DEADLINE_S)[0]:
            raise TimeoutError("nobody connects")
        sock, _ = listener.accept()
        listener.close()
        if PER_CONNECTION not in HOLDERS:
            return self.end(sock, "server", self.down, self.up)
        done = in_child(lambda: [] if self.end(sock, "server", self.down, self.up) else ["failed"], "server")
        sock.close()
        return not done()

    def connect(self, address, port):
        """The client's end."""
        return self.end(socket.create_connection((address, port)), "client", self.up, self.down)

    def end(self, sock, who, mine, theirs):
        greet(sock, self.seed, who == "server")
        failures = self.run(sock, who, self.seed, mine, theirs)
        report(f"seed {self.seed}, users {self.users}", failures)
        sock.close()
        return not failures


def play(seed, total):
    """One seed, both ends: true if all is well."""
    seed = Seed(seed, total)
    told, tells = os.pipe()

    def serve():
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        os.write(tells, struct.pack("H", listener.getsockname()[1]))
        return seed.serve(listener)

    def connect():
        return seed.connect("127.0.0.1", *struct.unpack("H", os.read(told, 2)))

    # Who changes its user is another process than the one that plays on.
    children = [as_user(seed.users[1], connect)]
    is_fine = True
    if seed.users[0]:
        children.append(as_user(seed.users[0], serve))
    else:
        is_fine = serve()
    os.close(told)
    os.close(tells)
    return is_fine & all([os.waitpid(child, 0)[1] == 0 for child in children])


def play_end(seed, total, listener, peer):
    """One seed, one end, in a process of its own: the server's with a listener, else the client's."""
    seed = Seed(seed, total)
    if listener:
        child = as_user(seed.users[0], lambda: seed.serve(listener))
    else:
        child = as_user(seed.users[1], lambda: seed.connect(*peer))
    return os.waitpid(child, 0)[1] == 0


def as_user(user, end):
    """A child that becomes the user, if one is named, and plays an end."""
    child = os.fork()
    if child:
        return child
    is_fine = False
    try:
        if user and user != people.ROOT:
            entry = pwd.getpwnam(user)
            os.setgroups([])
            os.setresgid(*[entry.pw_gid] * 3)
            os.setresuid(*[entry.pw_uid] * 3)
        is_fine = end()
    except Exception as error:  # nothing of the parent's goes on in a child
        report(f"user {user}", [repr(error)])
    os._exit(0 if is_fine else 1)


def main():
    first, _, last = sys.argv[1].partition("-")
    total = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000
    seeds = range(int(first), int(last or first) + 1)
    if sys.argv[3:]:
        peer = sys.argv[4], int(sys.argv[5])
        # One for all seeds: who connects for the next one waits in its queue.
        listener = socket.create_server(peer) if sys.argv[3] == "serve" else None
        fine = [play_end(seed, total, listener, peer) for seed in seeds]
    else:
        fine = [play(seed, total) for seed in seeds]
    sys.stdout.flush()
    os._exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
