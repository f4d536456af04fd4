"""A living peer that does its worst by doing nothing: it publishes bytes and does not ring, or says and reads nothing.

That the victim sleeps is kept from the peer's library: somebody takes back the victim's wish to be woken, over and
over again. Over TCP such a peer is one that is silent. The victim's waits last as long as it wants and no longer,
its other connection goes on, and no byte is lost once the peer behaves.
"""

import functools
import os
import select
import signal
import socket
import struct
import threading
import time

import ends
from ends import echo, exactly, main, pair
from forging import HALF_BYTES, HALVES, RECEIVE_ARM, SPACE_ARM, Segment, side_of

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
MESSAGES, MESSAGE, TURNS = 40, 500, 30
NAP_S = 0.02
PATIENCE_S = 30
NO_WISH = struct.pack("I", 0)


def never_rings(sock):
    """Sends, while nobody is known to sleep; then once more, as it should."""
    segment = Segment("self")
    done = threading.Event()
    side = side_of(sock)
    wishes = [HALVES + side * HALF_BYTES + RECEIVE_ARM, HALVES + (side ^ 1) * HALF_BYTES + SPACE_ARM]

    def take_back():
        while not done.is_set():
            for at in wishes:
                segment.write(at, NO_WISH)

    thief = threading.Thread(target=take_back)
    thief.start()
    for i in range(MESSAGES):
        sock.sendall(ends.stream(i, MESSAGE))
        time.sleep(0.002)
    # Until the victim has had enough of it.
    exactly(sock, 1)
    done.set()
    thief.join()
    sock.sendall(ends.stream(MESSAGES, MESSAGE))
    echo(sock)


def withholds(sock):
    """Neither says nor reads anything until it is told to."""
    signal.sigwait({signal.SIGUSR1})
    for i in range(MESSAGES + 1):
        sock.sendall(ends.stream(i, MESSAGE))
    echo(sock)


def waiter(socks, how):
    """A way to wait for bytes of several connections, so many seconds; which have some."""
    if how == "poll":
        poll = select.poll()
        for sock in socks:
            poll.register(sock, select.POLLIN)
        return lambda limit_s: [fd for fd, _ in poll.poll(limit_s * 1000)]
    epoll = select.epoll()
    for sock in socks:
        epoll.register(sock, select.EPOLLIN | (select.EPOLLET if how == "edge" else 0))
    return lambda limit_s: [fd for fd, _ in epoll.poll(limit_s)]


def take(sock, got):
    """What there is."""
    while isinstance(data := ends.outcome(sock.recv, 65536, socket.MSG_DONTWAIT), bytes) and data:
        got += data


def by_events(sock, innocent, how):
    """One loop for both; whether the innocent connection is answered each time, and no wait is too short."""
    wait, got, fine, whole = waiter([sock, innocent], how), bytearray(), True, True
    for turn in range(TURNS):
        text = ends.stream(1000 + turn, 700)
        innocent.sendall(text)
        back = bytearray()
        end = time.monotonic() + PATIENCE_S
        while len(back) < len(text) and time.monotonic() < end:
            wait(PATIENCE_S)
            take(innocent, back)
            take(sock, got)
        fine = fine and bytes(back) == text
        began = time.monotonic()
        if not wait(NAP_S):
            whole = whole and time.monotonic() - began >= NAP_S
        take(sock, got)
    return got, fine and whole


def by_threads(sock, innocent, _):
    """A thread that waits with a limit on the one, and calls that block on the other."""
    got, ended, seen = bytearray(), threading.Event(), set()

    def reader():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(NAP_S * 1_000_000)))
        while not ended.is_set():
            data = ends.outcome(sock.recv, 65536)
            if isinstance(data, bytes) and data:
                got.extend(data)
            else:
                seen.add(data)

    thread = threading.Thread(target=reader)
    thread.start()
    fine = True
    for turn in range(TURNS):
        text = ends.stream(1000 + turn, 700)
        innocent.sendall(text)
        fine = exactly(innocent, len(text)) == text and fine
    ended.set()
    thread.join(PATIENCE_S)
    fine = fine and not thread.is_alive() and seen <= {"EAGAIN"}
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    return got, fine


@scenario
def silent(what, how):
    if what == "withholds":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    sock, peer = pair(withholds if what == "withholds" else never_rings)
    innocent, other = pair(echo)
    got, fine = (by_threads if how == "recv" else by_events)(sock, innocent, how)
    # Now the peer does as it should: everything comes.
    if what == "withholds":
        sock.settimeout(NAP_S)
        full = not got and ends.outcome(lambda: [sock.sendall(bytes(65536)) for _ in range(1 << 12)]) == "TimeoutError"
        sock.settimeout(None)
        os.kill(peer, signal.SIGUSR1)
    else:
        full = True
        sock.sendall(b"e")
    wanted = b"".join(ends.stream(i, MESSAGE) for i in range(MESSAGES + 1))
    got += exactly(sock, len(wanted) - len(got))
    innocent.close()
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(65536):
        pass
    sock.close()
    codes = [ends.reap(pid) for pid in (peer, other)]
    return {"right": bytes(got) == wanted, "fine": fine, "full": full, "codes": codes}


if __name__ == "__main__":
    main(TABLE)
