"""Arrays of `poll` that are longer than most, and a `poll` in a process that can open nothing more; a set
that is waited for while its connection leaves its lanes."""

import ctypes
import functools
import os
import resource
import select
import sys
import threading

import ends
from ends import main, pair

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
PIECE = 4096
CLOSE_RANGE_UNSHARE = 2


def open_no_more(other):
    """What is kept for a thread that sleeps is in use by one that waits for `other`; no descriptor is left for a second."""
    sleeper = threading.Thread(target=other.recv, args=(1,), daemon=True)
    sleeper.start()
    ends.until_asleep(os.getpid(), sleeper.native_id)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@scenario
def room(count, spare="some"):
    """Whether a full connection is writable among so many entries, before its reader moves and after."""
    hear, tell = os.pipe()

    def reader(sock):
        os.read(hear, 1)
        ends.drain(sock, b"")

    other = pair(ends.echo)[0] if spare == "none" else None
    sock, child = pair(reader)
    sock.setblocking(False)
    silent, _ = os.pipe()
    poll = select.poll()
    # One registration for each number: a silent pipe under many.
    for _ in range(int(count) - 1):
        poll.register(os.dup(silent), select.POLLIN)
    poll.register(sock, select.POLLOUT)
    # Who is seen to wait is told EAGAIN when the ring is full, while the kernel's buffers are empty.
    assert len(poll.poll(0)) == 1
    try:
        while True:
            sock.send(b"p" * PIECE)
    except BlockingIOError:
        pass
    if spare == "none":
        open_no_more(other)
    full = [poll.poll(0), poll.poll(20), poll.poll(200)]
    os.write(tell, b"r")
    after = [events for _, events in poll.poll(20_000)]
    sock.close()
    os.waitpid(child, 0)
    return {"full": full, "after": after}


@scenario
def left_asleep(events):
    """A thread that gets descriptors of its own takes the process off its lanes while another one waits in a set: what the
    waits say behind that, before and after bytes come, and at the end."""
    hear, tell = os.pipe()

    def writer(sock):
        os.close(tell)
        while os.read(hear, 1):
            sock.sendall(b"y" * 10)

    sock, child = pair(writer)
    os.close(hear)
    had_lanes = ends.is_attached()
    held = select.epoll()
    held.register(sock, int(events))
    main_thread, libc = threading.get_native_id(), ctypes.CDLL(None)

    def leave():
        ends.until_asleep(os.getpid(), main_thread)
        assert libc.close_range(900, 1000, CLOSE_RANGE_UNSHARE) == 0

    def wait(limit_s):
        return [bits for _, bits in held.poll(limit_s)]

    first = wait(0)
    thread = threading.Thread(target=leave)
    thread.start()
    seen = [first, wait(0.3)]
    thread.join()
    seen.append(wait(0))
    os.write(tell, b"x")
    seen += [wait(ends.PATIENCE_S), len(sock.recv(100)), wait(0)]
    os.close(tell)
    if not int(events) & select.EPOLLONESHOT:
        seen.append(wait(ends.PATIENCE_S))
    seen.append(len(sock.recv(100)))
    return {"seen": seen, "child": ends.reap(child), "quiet": seen[1:3] == [[], []], "lanes": had_lanes == ("LD_PRELOAD" in os.environ)}


if __name__ == "__main__":
    sys.exit(main(TABLE))
