"""The monotonic clocks of a process jump in its life: it enters time namespaces, one after the other.

Only a process with one thread may do that, so everything happens in one. Waits that begin after a jump last as
long as they should, and what was noted by the clock before it does no harm.
"""

import ctypes
import functools
import json
import os
import select
import signal
import socket
import struct
import time

import ends
from ends import Waiter, answers, exactly, fill, main, pair, reap, started

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
CLONE_NEWTIME = 0x80
DAY_S = 86_400
NAP_S = 0.04
PATIENCE_S = 30
libc = ctypes.CDLL(None, use_errno=True)


def call(function, *args):
    if function(*args) != 0:
        raise OSError(ctypes.get_errno(), function.__name__)


def jump(ahead_s):
    """From now on the monotonic clocks are so much ahead of everybody's."""
    call(libc.unshare, CLONE_NEWTIME)
    with open("/proc/self/timens_offsets", "w", encoding="ascii") as file:
        file.write(f"monotonic {ahead_s} 0\nboottime {ahead_s} 0\n")
    entered = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
    call(libc.setns, entered, CLONE_NEWTIME)
    os.close(entered)


def offsets():
    """Where the clock jumps to: far ahead, back, years ahead, to its very beginning, ahead and there again, half a day ahead:
    the last is less than a day on a machine that has run for longer, too."""
    least = 2 - int(time.monotonic())
    return [400 * DAY_S, 0, 10 * 365 * DAY_S, least, 3 * DAY_S, least, least + DAY_S // 2]


def late_echo(sock):
    """Answers each message after a moment in which its sender falls asleep, as long as it is told."""
    while nap := exactly(sock, 4):
        time.sleep(struct.unpack("!f", nap)[0])
        sock.sendall(exactly(sock, 1000))


def whole_wait(waiter):
    """A wait for nothing; whether it found nothing and lasted its time."""
    began = time.monotonic()
    return not waiter.wait(NAP_S) and time.monotonic() - began >= NAP_S


def trip(sock, waiter, nap_s, text):
    """A message and its answer, which is waited for."""
    sock.sendall(struct.pack("!f", nap_s) + text)
    return waiter.wait(PATIENCE_S) and exactly(sock, len(text)) == text


def waits(how, way):
    """Waits, empty and for an answer, before and after each jump."""
    sock, child = pair(late_echo)
    waiter = Waiter(sock, how)
    seen = []
    for at, ahead_s in enumerate([None, *offsets()]):
        before = time.monotonic()
        if ahead_s is not None:
            jump(ahead_s)
        moved = time.monotonic() - before
        text = ends.stream(at, 1000)
        fine = [trip(sock, waiter, nap_s, text) for nap_s in (0, NAP_S, 0, 0, NAP_S)]
        seen.append([moved > DAY_S, moved < -DAY_S, whole_wait(waiter), *fine, whole_wait(waiter)])
    sock.shutdown(socket.SHUT_WR)
    way.sendall(json.dumps([*seen, exactly(sock, 1) == b"", reap(child) == 0]).encode())


@scenario
def jumps():
    """Each way to wait, in a process of its own."""
    return answers({how: started(waits, how) for how in ("recv", "poll", "select", "level", "edge")})


@scenario
def while_young():
    """The clock jumps while connections earn their lanes."""
    fine = []
    for ahead_s in offsets():
        sock, child = pair(late_echo, warm=False)
        waiter = Waiter(sock, "recv")
        for i in range(60):
            if i % 20 == 7:
                jump(ahead_s if i < 20 else 5 * DAY_S if i < 40 else 0)
            fine.append(trip(sock, waiter, 0, ends.stream(i, 1000)))
        sock.close()
        fine.append(reap(child) == 0)
    return {"fine": all(fine), "count": len(fine)}


@scenario
def room(how, first_s, then_s):
    """A sender is told EAGAIN at one time; at another its reader goes on, or is killed: who waits for room is told."""
    seen = []
    for fate in (signal.SIGCONT, signal.SIGKILL):
        jump(int(first_s) * DAY_S)

        def peer(sock):
            os.kill(os.getpid(), signal.SIGSTOP)
            while sock.recv(65536):
                pass

        sock, child = pair(peer)
        os.waitpid(child, os.WUNTRACED)
        sock.setblocking(False)
        waiter = Waiter(sock, how, select.POLLOUT)
        full = fill(sock)[1]
        while waiter.wait(0):
            full = fill(sock)[1]
        jump(int(then_s) * DAY_S)
        os.kill(child, fate)
        told = waiter.wait(PATIENCE_S)
        after = ends.outcome(sock.send, b"x")
        seen.append([full, told, after if fate == signal.SIGCONT else after in ("EPIPE", "ECONNRESET")])
        sock.close()
        reap(child)
    return {"seen": seen}


if __name__ == "__main__":
    main(TABLE)
