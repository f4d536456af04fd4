"""Streams of large sends, by which one end's memory may be read by the other end's device.

    zcopy.py serve PORT COUNT ROOM HOW         takes COUNT bytes in receives of ROOM. HOW: block, poll, late, both
    zcopy.py ask HOST PORT COUNT SIZE HOW      sends them in blocking sends of SIZE. HOW: block, signal, both, fork
"""

import os
import select
import signal
import socket
import sys
import threading
import time

from ends import exactly

PATTERN = bytes(range(251)) * 4181
# Until both ends have met: small messages, there and back.
ROUNDS = 400
RESTS_S = 0.3


LONGEST = 4 << 20
TEXT = memoryview(PATTERN * (LONGEST // len(PATTERN) + 2))


def part(at, count):
    """Bytes of the stream. No two of its pages are alike where it matters: its period is no multiple of theirs."""
    at %= len(PATTERN)
    return TEXT[at : at + min(count, LONGEST)]


def meet(sock, is_first):
    for number in range(ROUNDS):
        if is_first or number:
            sock.sendall(b"%04d" % number)
        if is_first or number < ROUNDS:
            assert len(exactly(sock, 4)) == 4
    if not is_first:
        sock.sendall(b"last")


def take(sock, count, room, how):
    got = 0
    buffer = bytearray(room)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    sock.setblocking(how != "poll")
    while got < count:
        if how == "late" and got % (8 * room) < room:
            time.sleep(RESTS_S)
        try:
            n = sock.recv_into(buffer, min(room, count - got))
        except BlockingIOError:
            assert poll.poll(20_000)
            continue
        if not n:
            raise EOFError(got)
        assert memoryview(buffer)[:n] == part(got, n), got
        got += n
    sock.setblocking(True)


def push(sock, count, size):
    sent = 0
    while sent < count:
        piece = bytearray(part(sent, min(size, count - sent)))
        n = sock.send(piece)
        # What is read late is seen to be wrong.
        piece[:] = bytes(len(piece))
        sent += n


def serve(port, count, room, how):
    sock, _ = socket.create_server(("", port)).accept()
    meet(sock, False)
    if how == "both":
        thread = threading.Thread(target=push, args=(sock, count, room))
        thread.start()
        take(sock, count, room, "block")
        thread.join()
    else:
        take(sock, count, room, how)
    sock.sendall(b"all")
    assert sock.recv(1) == b""


def ask(host, port, count, size, how):
    sock = socket.create_connection((host, port))
    meet(sock, True)
    ticks = []
    if how == "signal":
        signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    if how == "both":
        thread = threading.Thread(target=take, args=(sock, count, size, "block"))
        thread.start()
    if how == "fork":
        thread = threading.Thread(target=children)
        thread.start()
    push(sock, count, size)
    if how in ("fork", "both"):
        thread.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert how != "signal" or ticks
    assert exactly(sock, 3) == b"all"
    pinned = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmPin")]
    print("every byte", *[] if pinned == ["0"] else pinned, flush=True)


def children():
    """That do nothing with the connection."""
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.005)


words = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
globals()[sys.argv[1]](*words)
