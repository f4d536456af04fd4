"""A thread waits on a connection while another one takes the process into a sandbox."""

import ctypes
import functools
import os
import select
import threading
import time

import ends
from ends import exactly, main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

BULK_BYTES = 1 << 20
# More than kernel and ring hold together, so that a sender sleeps.
FLOOD_BYTES = 24 << 20
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ALLOW = 0x7FFF0000
BPF_RET_K = 6


class Instruction(ctypes.Structure):
    """struct sock_filter."""

    _fields_ = [
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    ]


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]


def enter_sandbox():
    """A filter that allows everything: the library cannot know that."""
    libc = ctypes.CDLL(None, use_errno=True)
    filters = (Instruction * 1)(Instruction(BPF_RET_K, 0, 0, SECCOMP_RET_ALLOW))
    program = Program(1, filters)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0


def both_ways(sock):
    """Bulk, so that there is memory to give back and sleeps are limited."""
    text = ends.stream(1, BULK_BYTES)
    thread = threading.Thread(target=sock.sendall, args=(text,))
    thread.start()
    assert exactly(sock, BULK_BYTES) == text
    thread.join()


def wait(sock, how, results):
    """The thread that sleeps."""
    try:
        if how == "recv":
            results.append(sock.recv(10).decode())
        elif how == "send":
            sock.sendall(ends.stream(2, FLOOD_BYTES))
            results.append("sent")
        else:
            waits = select.poll() if how == "poll" else select.epoll()
            waits.register(sock, select.POLLIN)
            events = waits.poll()
            assert [fd for fd, _ in events] == [sock.fileno()], events
            results.append(sock.recv(10).decode())
    except OSError as error:
        results.append(repr(error))


def asleep(thread):
    """Until the thread sleeps in the kernel, seen ten times running."""
    seen = 0
    while seen < 10:
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="utf-8") as stat:
            seen = seen + 1 if stat.read().rsplit(") ", 1)[1][0] == "S" else 0
        time.sleep(0.01)


@scenario
def waiting(how, silence_s):
    """What the sleeper gets, and how much CPU time the silence took."""
    hear, tell = os.pipe()

    def peer(sock):
        both_ways(sock)
        os.read(hear, 1)
        if how == "send":
            assert exactly(sock, FLOOD_BYTES) == ends.stream(2, FLOOD_BYTES)
        else:
            sock.sendall(b"x")
        assert sock.recv(1) == b""

    sock, child = ends.pair(peer)
    both_ways(sock)
    results = []
    thread = threading.Thread(target=wait, args=(sock, how, results))
    thread.start()
    asleep(thread)
    enter_sandbox()
    before = time.process_time()
    time.sleep(float(silence_s))
    spent = time.process_time() - before
    os.write(tell, b"g")
    thread.join()
    sock.close()
    return {"got": results, "busy": spent > float(silence_s) / 4, "child": ends.reap(child)}


if __name__ == "__main__":
    main(TABLE)
