"""What scenario programs share: connected processes, warm-up, and telling what a call gave."""

import errno
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time

WARM_ROUNDS = 40
PATIENCE_S = 8 * float(os.environ.get("SDP_TEST_SLOWNESS", "1"))


def scenario(table, function):
    """Decorator body: enters a function in a module's table."""
    table[function.__name__] = function
    return function


def main(table):
    """Runs the scenario named on the command line and prints its result."""
    signal.alarm(60)
    result = table[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(result), flush=True)
    sys.stdout.flush()
    os._exit(0)


def listener():
    """A loopback listener."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    return sock


def pair(child_body, *, warm=True, related=False, first=None):
    """Connects to a fork child that runs `child_body(sock)` and exits; (socket, child's pid).

    `first` is what the child does before it connects. Unless `related`, the fork comes before any socket: the two
    are strangers to each other.
    """
    lst = listener() if related else None
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os.close(tell)
            port = struct.unpack("!H", os.read(hear, 2))[0]
            os.close(hear)
            if lst:
                lst.close()
            if first:
                first()
            sock = socket.create_connection(("127.0.0.1", port))
            if warm:
                warm_up(sock, True)
            child_body(sock)
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    lst = lst or listener()
    os.write(tell, struct.pack("!H", lst.getsockname()[1]))
    os.close(tell)
    os.close(hear)
    sock, _ = lst.accept()
    lst.close()
    if warm:
        warm_up(sock, False)
    return sock, child


def exactly(sock, n):
    """Receives n bytes, or fewer at the end of the stream."""
    parts = []
    while n:
        data = sock.recv(min(n, 65536))
        if not data:
            break
        parts.append(data)
        n -= len(data)
    return b"".join(parts)


def take_slowly(sock, n):
    """Bytes of a non-blocking socket that nobody waits for: such an end stays on the kernel lane."""
    got = b""
    while len(got) < n:
        try:
            more = sock.recv(n - len(got))
        except BlockingIOError:
            time.sleep(0.0003)
            continue
        if not more:
            break
        got += more
    return got


def echo(sock):
    """Sends back what it gets until the end."""
    while data := sock.recv(65536):
        sock.sendall(data)


def bulk(sock, n, seed=None):
    """`n` bytes to a peer that sends as many, both ways at once; whether they came back."""
    text = stream(n if seed is None else seed, n)
    thread = threading.Thread(target=sock.sendall, args=(text,))
    thread.start()
    fine = exactly(sock, n) == text
    thread.join()
    return fine


def warm_up(sock, first, rounds=WARM_ROUNDS):
    """Small messages to and fro, by which a connection earns its lane."""
    for i in range(rounds):
        message = struct.pack("!I", i) * 8
        if first:
            sock.sendall(message)
            assert exactly(sock, 32) == message
        else:
            assert exactly(sock, 32) == message
            sock.sendall(message)


def until_asleep(pid, thread=None):
    """Waits until a process, or one thread of it, sleeps in the kernel."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with open(f"/proc/{pid}/task/{thread or pid}/stat", encoding="utf-8") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "S":
                time.sleep(0.01)
                return
        time.sleep(0.001)
    raise AssertionError(f"{pid}/{thread} does not sleep")


def is_attached():
    """Whether this process has mapped a connection's segment."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return "memfd:sdp-conn" in maps.read()


def stream(seed, total):
    """The bytes that a seed stands for."""
    return random.Random(seed).randbytes(total)


def name(error):
    """An OSError's word."""
    return errno.errorcode.get(error.errno, str(error)) if error.errno else type(error).__name__


def outcome(call, *args):
    """What a call gave: its value, or the word of its error."""
    try:
        value = call(*args)
    except OSError as error:
        return name(error)
    return value


def drain(sock, expected, *, limit_s=PATIENCE_S):
    """Reads to the end; (bytes, how it ended, whether they are a prefix of what was meant)."""
    sock.settimeout(limit_s)
    got = bytearray()
    try:
        while True:
            data = sock.recv(65536)
            if not data:
                end = "EOF"
                break
            got += data
    except OSError as error:
        end = name(error)
    return len(got), end, bytes(got) == expected[: len(got)]


def writes_until_error(sock, limit=20):
    """Writes small messages with pauses until an error; (the error, whether it came soon)."""
    sock.settimeout(PATIENCE_S)
    for i in range(limit):
        try:
            sock.send(b"w" * 10)
        except OSError as error:
            return name(error), i <= 5
        time.sleep(0.02)
    return "none", False


def fill(sock):
    """Sends until that fails; (bytes, the error's word)."""
    sent = 0
    while not isinstance(done := outcome(sock.send, bytes(65536)), str):
        sent += done
    return sent, done


class Waiter:
    """A way to wait until a socket has one of some events: poll, select, an epoll set that tells it by level or edge,
    a set with such a set in it (nested), or recv, which knows of bytes and the end only."""

    def __init__(self, sock, way, events=select.POLLIN):
        self.sock, self.way, self.events = sock, way, events
        if way == "poll":
            self.object = select.poll()
            self.object.register(sock, events)
        elif way in ("level", "edge", "nested"):
            self.object = select.epoll()
            self.object.register(sock, events | (select.EPOLLET if way == "edge" else 0))
        if way == "nested":
            self.inner = self.object
            self.object = select.epoll()
            self.object.register(self.inner, select.EPOLLIN)

    def wait(self, limit_s):
        """Whether there is something, within a time."""
        if self.way == "poll":
            return bool(self.object.poll(limit_s * 1000))
        if self.way == "select":
            asked = [[self.sock] if self.events & event else [] for event in (select.POLLIN, select.POLLOUT)]
            return any(select.select(*asked, [], limit_s))
        if self.way == "recv":
            limit = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1_000_000))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            return outcome(self.sock.recv, 1, socket.MSG_PEEK) != "EAGAIN"
        return bool(self.object.poll(limit_s))


def readiness(sock, timeout_ms=0):
    """poll's bits for everything, as words."""
    poll = select.poll()
    words = {
        select.POLLIN: "IN",
        select.POLLOUT: "OUT",
        select.POLLRDHUP: "RDHUP",
        select.POLLHUP: "HUP",
        select.POLLERR: "ERR",
    }
    poll.register(sock, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    events = poll.poll(timeout_ms)
    bits = events[0][1] if events else 0
    return [word for bit, word in words.items() if bits & bit]


def started(body, *args):
    """A process that runs `body` with one end of a way; (its id, the other end)."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        ours.close()
        try:
            body(*args, theirs)
        except BaseException as error:
            print(f"{body.__name__}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    theirs.close()
    return pid, ours


def answers(all_):
    """What each of these processes says before it ends, and how it ends."""
    return {key: [json.loads(exactly(way, 1 << 20) or b"null"), reap(pid)] for key, (pid, way) in all_.items()}


def kill(pid):
    """Ends a child with SIGKILL and waits until it is gone."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def reap(pid):
    """Waits for a child; its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def settle(seconds=0.05):
    """Lets the loopback deliver what was sent."""
    time.sleep(seconds)
