"""Socket options and flags with a meaning of their own, on a connection that is on a lane."""

import functools
import os
import select
import signal
import socket
import struct
import sys
import time

import ends
from ends import drain, exactly, main, outcome, pair, readiness, settle, warm_up

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
TIMEVAL = struct.Struct("@ll")


# By which a peer of `script` tells that it has done a step.
HEARS, TELLS = socket.socketpair()
STEP_S = 30


def script(*steps):
    """A peer that does one step per byte it is sent, and closes at the end of the stream."""

    def peer(sock):
        todo = list(steps)
        while sock.recv(1):
            if todo:
                todo.pop(0)(sock)
                TELLS.send(b"d")

    return peer


def has_step_done(sock):
    """Sends the byte for a step, and waits until that is done and has been delivered."""
    sock.sendall(b"1")
    assert select.select([HEARS], [], [], STEP_S)[0], "the peer does not do its step"
    HEARS.recv(1)
    settle()


def finish(sock, child, **seen):
    sock.close()
    return {**seen, "peer": ends.reap(child)}


def took(call, *args):
    """A call's outcome, and its duration in tenths of a second."""
    began = time.monotonic()
    value = outcome(call, *args)
    return value, int((time.monotonic() - began) * 10 + 0.2)


@scenario
def timeouts():
    sock, child = pair(script(lambda s: s.sendall(b"x" * 5)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.pack(0, 300_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEVAL.pack(0, 300_000))
    empty = took(lambda: len(os.read(sock.fileno(), 10)))
    has_step_done(sock)
    part = took(lambda: sock.recv(10, socket.MSG_WAITALL).decode())
    return finish(sock, child, empty=empty, part=part)


@scenario
def send_timeout():
    sock, child = pair(lambda s: time.sleep(4))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEVAL.pack(0, 300_000))
    word = None
    for _ in range(2000):
        try:
            os.write(sock.fileno(), b"z" * 65536)
        except OSError as error:
            word = ends.name(error)
            break
    os.kill(child, signal.SIGKILL)
    return {"word": word}


@scenario
def truncation():
    """MSG_TRUNC on a stream throws bytes away; MSG_PEEK leaves them."""
    text = bytes(range(200)) * 5
    sock, child = pair(script(lambda s: s.sendall(text)))
    has_step_done(sock)
    peeked = sock.recv(50, socket.MSG_PEEK)
    gone = len(sock.recv_into(bytearray(100), 100, socket.MSG_TRUNC).to_bytes(4, "big"))
    rest = exactly(sock, len(text) - 100)
    return finish(sock, child, peeked=peeked == text[:50], gone=gone, rest=rest == text[100:])


@scenario
def low_watermark():
    """With SO_RCVLOWAT, poll waits for that many bytes."""
    sock, child = pair(script(*[lambda s: s.sendall(b"y" * 40)] * 4))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    seen = []
    for _ in range(4):
        has_step_done(sock)
        seen.append("IN" in readiness(sock))
    got = len(exactly(sock, 160))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return finish(sock, child, seen=seen, got=got)


@scenario
def low_watermark_with_unread():
    """The option comes while bytes are unread in the ring."""
    sock, child = pair(script(*[lambda s: s.sendall(b"y" * 40)] * 4))
    has_step_done(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 60)
    first = "IN" in readiness(sock)
    has_step_done(sock)
    second = "IN" in readiness(sock)
    return finish(sock, child, first=first, second=second, got=len(exactly(sock, 80)))


@scenario
def linger_zero(unread):
    """SO_LINGER {1, 0} and close: the peer sees a reset, after the bytes that it has."""

    def peer(sock):
        sock.sendall(b"k" * 500)
        sock.recv(1)
        if unread == "read":
            exactly(sock, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        time.sleep(0.5)

    sock, child = pair(peer)
    sock.sendall(b"1")
    over = select.poll()
    over.register(sock, select.POLLRDHUP)
    over.poll(10_000)  # the end may take its time on a busy machine; what it looks like is the test
    time.sleep(0.2)
    seen = [readiness(sock), drain(sock, b"k" * 500), drain(sock, b""), outcome(sock.send, b"x")]
    return finish(sock, child, seen=seen)


LINGER_ZERO = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@scenario
def lingering_server(tell):
    """The option is on the listener."""
    lst = ends.listener()
    lst.setsockopt(*LINGER_ZERO)
    os.write(int(tell), struct.pack("!H", lst.getsockname()[1]))
    sock, _ = lst.accept()
    warm_up(sock, False)
    sock.close()
    os._exit(0)


@scenario
def lingering_client(hear):
    """The option is set by a child."""
    sock = socket.create_connection(("127.0.0.1", struct.unpack("!H", os.read(int(hear), 2))[0]))
    warm_up(sock, True)
    heir = os.fork()
    if heir == 0:
        sock.setsockopt(*LINGER_ZERO)
        os._exit(0)
    assert ends.reap(heir) == 0
    warm_up(sock, True)
    sock.close()
    os._exit(0)


@scenario
def linger_set_by(whom):
    """The same where the option of the end that closes came from its listener, or from a child that has ended. The process
    of that end has no relatives but that child."""
    is_child = whom == "child"
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        mine = hear if is_child else tell
        os.set_inheritable(mine, True)
        role = "lingering_client" if is_child else "lingering_server"
        os.execv(sys.executable, [sys.executable, __file__, role, str(mine)])
    if is_child:
        lst = ends.listener()
        os.write(tell, struct.pack("!H", lst.getsockname()[1]))
        sock, _ = lst.accept()
        warm_up(sock, False)
        warm_up(sock, False)
    else:
        sock = socket.create_connection(("127.0.0.1", struct.unpack("!H", os.read(hear, 2))[0]))
        warm_up(sock, True)
    over = select.poll()
    over.register(sock, select.POLLRDHUP)
    over.poll(30_000)
    peer = ends.reap(child)
    seen = [drain(sock, b""), outcome(sock.send, b"x")]
    sock.close()
    return {"seen": seen, "peer": peer}


@scenario
def urgent(inline):
    """One urgent byte amid data."""
    before, after = b"b" * 3000, b"a" * 3000

    def send_it(s):
        s.sendall(before)
        s.send(b"!", socket.MSG_OOB)
        s.sendall(after)

    sock, child = pair(script(send_it))
    if inline == "inline":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    has_step_done(sock)
    want = 6001 if inline == "inline" else 6000
    got = b""
    urgent_byte = None
    while len(got) < want:
        if urgent_byte is None and inline != "inline" and len(got) >= 3000:
            urgent_byte = outcome(lambda: sock.recv(1, socket.MSG_OOB).decode())
        data = sock.recv(want - len(got))
        if not data:
            break
        got += data
    expected = before + (b"!" if inline == "inline" else b"") + after
    return finish(sock, child, fine=got == expected, urgent=urgent_byte)


@scenario
def urgent_from_us():
    """We send urgent data on a lane that the peer reads from."""

    def peer(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        sock.sendall(b"k")
        while data := sock.recv(1000):
            sock.sendall(data)

    sock, child = pair(peer)
    assert sock.recv(1) == b"k"
    sock.sendall(b"12345")
    sock.send(b"!", socket.MSG_OOB)
    sock.sendall(b"67890")
    return finish(sock, child, back=exactly(sock, 11).decode())


@scenario
def half_close():
    """shutdown(WR) by one end, much later data by the other."""
    text = ends.stream(3, 400_000)

    def peer(sock):
        assert drain(sock, b"")[1] == "EOF"
        for at in range(0, len(text), 10_000):
            sock.sendall(text[at : at + 10_000])

    sock, child = pair(peer)
    sock.shutdown(socket.SHUT_WR)
    late = outcome(sock.send, b"x")
    got = drain(sock, text)
    return finish(sock, child, got=got, late=late)


@scenario
def queue_sizes():
    """FIONREAD counts what is unread."""
    import fcntl
    import termios

    sock, child = pair(script(lambda s: s.sendall(b"n" * 700)))
    has_step_done(sock)

    def unread():
        return struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4))[0]

    seen = [unread(), len(sock.recv(300)), unread(), len(sock.recv(500)), unread()]
    return finish(sock, child, seen=seen)


@scenario
def quiet_switch(wait):
    """A peer leaves its lane without a word. The server, which makes one blocking recv per readiness
    event, must go on serving the other connection."""

    def leaver(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
        time.sleep(1.2)
        sock.sendall(b"aa")
        assert exactly(sock, 2) == b"aa"

    def talker(sock):
        time.sleep(0.4)
        for _ in range(20):
            began = time.monotonic()
            sock.sendall(b"bb")
            assert exactly(sock, 2) == b"bb"
            assert time.monotonic() - began < 0.5, "the server slept in another recv"

    ends_ = [pair(leaver), pair(talker)]
    socks = {sock.fileno(): sock for sock, _ in ends_}
    waiter = select.epoll() if wait.startswith("epoll") else select.poll()
    extra = select.EPOLLET if wait == "epoll-et" else 0
    for number in socks:
        if wait != "select":
            waiter.register(number, select.POLLIN | extra)
    while socks:
        if wait == "select":
            ready = select.select(list(socks), [], [], 5)[0]
        else:
            ready = [number for number, _ in waiter.poll(5 if wait != "poll" else 5000)]
        assert ready
        for number in ready:
            data = socks[number].recv(100)
            if data:
                socks[number].sendall(data)
            else:
                if wait != "select":
                    waiter.unregister(number)
                del socks[number]
    return {"children": [ends.reap(child) for _, child in ends_]}


if __name__ == "__main__":
    main(TABLE)
