"""Several processes that use one end of a connection: readers, writers, and who goes on when one leaves.

The end's processes are forks of one that had the connection on its lane before; `peer` is the other end.
"""

import ctypes
import functools
import os
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import zlib

import ends
from ends import drain, exactly, main, pair, reap, until_asleep

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
HEAD = struct.Struct("!BIHI")  # writer, number, length of the body, its checksum
RECORD = struct.Struct("!II56x")  # number, its complement
USERS = 3
# What `sendfile` is trusted to send in one piece.
FILE_MOST = 16_000


def forked(count, body, *args):
    """Children that run `body(index, *args)` and exit with 0 if it is true; their ids."""
    children = []
    for index in range(count):
        pid = os.fork()
        if pid == 0:
            signal.alarm(40)
            try:
                os._exit(0 if body(index, *args) else 1)
            except BaseException as error:
                print(f"user {index}: {error!r}", file=sys.stderr, flush=True)
                os._exit(2)
        children.append(pid)
    return children


def records(n):
    """`n` numbered records of 64 bytes."""
    return [RECORD.pack(i, i ^ 0xFFFFFFFF) for i in range(n)]


def take_vector(sock, most):
    """One `readv` into two places."""
    rooms = bytearray(most // 3), bytearray(most - most // 3)
    n = os.readv(sock.fileno(), rooms)
    return b"".join(rooms)[:n]


def take_peeked(sock, most):
    """What is there is looked at first; it may be another one's by the time it is taken."""
    seen = sock.recv(most, socket.MSG_PEEK)
    if seen and len(seen) == RECORD.size:
        number, complement = RECORD.unpack(seen)
        assert complement == number ^ 0xFFFFFFFF, seen
    return sock.recv(most)


def take(sock, way, most):
    """One receive call of at most `most` bytes, waited for as `way` says."""
    if way in TAKES:
        return TAKES[way](sock, most)
    if way == "select":
        while True:
            select.select([sock], [], [], 20)
            try:
                return sock.recv(most, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        poll.poll(20_000)
        try:
            return sock.recv(most, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue  # another one's


TAKES = {
    "recv": lambda sock, most: sock.recv(most),
    "read": lambda sock, most: os.read(sock.fileno(), most),
    "readv": take_vector,
    "recvmsg": lambda sock, most: sock.recvmsg(most)[0],
    "waitall": lambda sock, most: sock.recv(most, socket.MSG_WAITALL),
    "peek": take_peeked,
}


@scenario
def readers(way, pace):
    """What is sent in pieces of one size and received in calls of that size comes whole, once, to somebody.

    As long as little is on its way: from a backlog TCP makes segments that end anywhere.
    """
    count, ahead = (3000, 50) if pace == "stream" else (600, 1)
    credit, grant = os.pipe()

    def peer(sock):
        os.close(grant)
        for i, text in enumerate(records(count)):
            if i >= ahead:
                assert os.read(credit, 1) == b"c"
            sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        assert drain(sock, b"")[0] == 0

    sock, child = pair(peer)
    hear, tell = os.pipe()

    def user(_):
        os.close(hear)
        while text := take(sock, way, RECORD.size):
            assert len(text) == RECORD.size, len(text)
            os.write(tell, text)
            os.write(grant, b"c")
        return True

    users = forked(USERS, user)
    sock.close()
    os.close(tell)
    os.close(grant)
    seen = []
    with open(hear, "rb") as told:
        while text := told.read(RECORD.size):
            number, complement = RECORD.unpack(text)
            assert complement == number ^ 0xFFFFFFFF, text
            seen.append(number)
    codes = [reap(pid) for pid in users]
    return {"missing": count - len(set(seen)), "twice": len(seen) - len(set(seen)), "codes": codes, "peer": reap(child)}


class Vector(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """`struct mmsghdr`."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.POINTER(Vector)),
        ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint),
    ]


def send_message(sock, text):
    """`sendmmsg` with one message; how much of it was sent."""
    vector = Vector(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p), len(text))
    message = Message(vectors=ctypes.pointer(vector), count=1)
    assert ctypes.CDLL(None).sendmmsg(sock.fileno(), ctypes.byref(message), 1, 0) == 1
    return message.sent


def send_file(sock, text):
    """`sendfile` of a file with just that in it."""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(text)
        return os.sendfile(sock.fileno(), file.fileno(), 0, len(text))


GIVES = {
    "call": lambda sock, text: sock.send(text),
    "vector": lambda sock, text: sock.sendmsg([text[:5], text[5:]]),
    "write": lambda sock, text: os.write(sock.fileno(), text),
    "writev": lambda sock, text: os.writev(sock.fileno(), [text[:5], text[5:]]),
    "sendmmsg": send_message,
    "sendfile": send_file,
}


@scenario
def writers(seed, way, most=4000):
    """Calls of up to `most` bytes of several processes arrive whole, and each process's in its order.

    As long as there is room for them: where TCP's buffer is full it takes a call in parts. `mixed`: each process
    by another call.
    """
    each, ahead = 800, 20
    most = int(most)
    if most > 4000:
        each, ahead = 200, 4
    credit, grant = os.pipe()
    os.write(grant, b"c" * ahead)
    most = min(most, FILE_MOST) if way == "sendfile" else most
    sizes = [0, 1, 50, 1000, most // 2, most - HEAD.size]

    def user(index, sock):
        rng = random.Random(int(seed) * 10 + index)
        for number in range(each):
            assert os.read(credit, 1) == b"c"
            body = rng.randbytes(rng.choice(sizes))
            text = HEAD.pack(index, number, len(body), zlib.crc32(body)) + body
            name = way if way != "mixed" else rng.choice(list(GIVES))
            # Of longer ones some kernels send page by page.
            give = GIVES[name] if name != "sendfile" or len(text) <= FILE_MOST else GIVES["call"]
            assert give(sock, text) == len(text)
        return True

    def peer(sock):
        os.close(grant)
        users = forked(USERS, user, sock)
        sock.close()
        codes = [reap(pid) for pid in users]
        assert codes == [0] * USERS, codes

    sock, child = pair(peer)
    following = [0] * USERS
    fine = True
    while head := exactly(sock, HEAD.size):
        writer, number, length, checksum = HEAD.unpack(head)
        fine = fine and number == following[writer] and zlib.crc32(exactly(sock, length)) == checksum
        following[writer] = number + 1
        if not fine:
            break
        os.write(grant, b"c")
    os.close(grant)
    sock.close()
    return {"fine": fine, "got": following, "peer": reap(child)}


def asks_for_two(sock, turns):
    """Sends a second request only when somebody is at work on the first."""
    for turn in range(turns):
        sock.sendall(RECORD.pack(turn, 0))
        assert exactly(sock, 1) == b"g"
        sock.sendall(RECORD.pack(turn, 1))
        assert sorted(exactly(sock, 2)) == sorted(b"12")
    sock.shutdown(socket.SHUT_WR)
    assert drain(sock, b"")[0] == 0


def works_on_two(sock, way, served, serve):
    """Answers requests; a first one only when somebody else has got the second."""
    while text := take(sock, way, RECORD.size):
        _, which = RECORD.unpack(text)
        if which == 0:
            sock.sendall(b"g")
            assert os.read(served, 1) == b"s"
            sock.sendall(b"1")
        else:
            os.write(serve, b"s")
            sock.sendall(b"2")
    return True


@scenario
def while_one_is_busy(way):
    """What comes while one reader is at work on what it got, another one gets."""
    turns = 40

    sock, child = pair(lambda sock: asks_for_two(sock, turns))
    served, serve = os.pipe()
    users = forked(2, lambda _: works_on_two(sock, way, served, serve))
    sock.close()
    return {"codes": [reap(pid) for pid in users], "peer": reap(child)}


@scenario
def one_shuts_down():
    """The end that one process sends is the end for all."""

    def peer(sock):
        ends.echo(sock)

    sock, child = pair(peer)
    hear, tell = socket.socketpair()

    def user(_):
        sock.sendall(b"a" * 100)
        assert exactly(sock, 100) == b"a" * 100
        sock.shutdown(socket.SHUT_WR)
        tell.sendall(b"s")
        return True

    sock.sendall(b"b" * 100)
    assert exactly(sock, 100) == b"b" * 100
    [other] = forked(1, user)
    assert hear.recv(1) == b"s"
    word = ends.outcome(sock.send, b"c", socket.MSG_NOSIGNAL)
    return {"send": word, "end": drain(sock, b""), "codes": [reap(other), reap(child)]}


@scenario
def one_is_killed(when):
    """Whoever is left goes on, with its own turn of the stream."""
    count = 400

    def peer(sock):
        for i, text in enumerate(records(count)):
            if i == count // 4:
                assert os.read(go, 1) == b"k"
            sock.sendall(text)
            assert exactly(sock, RECORD.size) == text
        sock.shutdown(socket.SHUT_WR)
        assert drain(sock, b"")[0] == 0

    go, tell = os.pipe()
    sock, child = pair(peer)
    rest, give = os.pipe()

    def user(_):
        for _ in range(count // 4):
            text = exactly(sock, RECORD.size)
            sock.sendall(text)
        if when == "between":
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(give, b"g")
        exactly(sock, 1)  # until it is killed: its turn comes no more

    [other] = forked(1, user)
    os.close(give)
    assert os.read(rest, 1) in (b"g", b"")
    if when == "later":
        until_asleep(other)
        os.kill(other, signal.SIGKILL)
    code = reap(other)
    os.write(tell, b"k")
    left = 0
    while text := exactly(sock, RECORD.size):
        assert RECORD.unpack(text)[0] == count // 4 + left, text
        sock.sendall(text)
        left += 1
    sock.close()
    return {"left": left, "codes": [code, reap(child)]}


@scenario
def asleep_before_the_fork(way, sleepers):
    """Threads that waited before there was another process, which then takes part: nobody sleeps over what is left."""
    turns = 60

    go, start = os.pipe()

    def begun(sock):
        assert os.read(go, 1) == b"b"
        asks_for_two(sock, turns)

    sock, child = pair(begun)
    served, serve = os.pipe()

    args = (sock, way, served, serve)
    threads = [threading.Thread(target=works_on_two, args=args) for _ in range(int(sleepers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        until_asleep(os.getpid(), thread.native_id)
    [other] = forked(1, lambda _: works_on_two(*args))
    os.write(start, b"b")
    for thread in threads:
        thread.join()
    code = reap(other)
    sock.close()
    return {"codes": [code, reap(child)]}


@scenario
def bulk_both_ways():
    """One process sends while another one, and the first's thread, receive: rings that fill and run empty."""
    total = 6_000_000

    def peer(sock):
        text = ends.stream(4, total)
        thread = threading.Thread(target=sock.sendall, args=(text,))
        thread.start()
        assert exactly(sock, total) == ends.stream(3, total)
        thread.join()
        sock.shutdown(socket.SHUT_WR)
        assert drain(sock, b"")[0] == 0

    sock, child = pair(peer)
    hear, tell = os.pipe()

    def user(_):
        os.close(hear)
        with open(tell, "wb") as out:
            while data := sock.recv(65536):
                out.write(struct.pack("!I", len(data)))
        return True

    [other] = forked(1, user)
    os.close(tell)
    got = 0
    sender = threading.Thread(target=sock.sendall, args=(ends.stream(3, total),))
    sender.start()
    while data := sock.recv(65536):
        got += len(data)
    sender.join()
    sock.shutdown(socket.SHUT_WR)
    with open(hear, "rb") as told:
        while text := told.read(4):
            got += struct.unpack("!I", text)[0]
    return {"missing": total - got, "codes": [reap(other), reap(child)]}


@scenario
def one_polls_a_set():
    """An epoll set of one process and the calls of another: both get what is theirs."""

    def peer(sock):
        ends.echo(sock)

    sock, child = pair(peer)
    hear, tell = socket.socketpair()

    def user(_):
        with select.epoll() as wait:
            wait.register(sock, select.EPOLLIN)
            for turn in range(100):
                assert hear.recv(1) == b"t"
                sock.sendall(bytes([turn]) * 50)
                assert wait.poll(20)
                assert exactly(sock, 50) == bytes([turn]) * 50
                hear.sendall(b"t")
        return True

    [other] = forked(1, user)
    for turn in range(100):
        sock.sendall(bytes([turn]) * 70)
        assert exactly(sock, 70) == bytes([turn]) * 70
        tell.sendall(b"t")
        assert tell.recv(1) == b"t"
    sock.shutdown(socket.SHUT_WR)
    return {"end": drain(sock, b""), "codes": [reap(other), reap(child)]}


main(TABLE)
