"""Traps that a design like this one falls into, one scenario each."""

import ctypes
import fcntl
import functools
import mmap
import os
import platform
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

import ends
from ends import echo, exactly, main, pair, reap

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
PATIENCE_S = 40
WRITERS = 20


def libc_itself():
    """libc's own functions: what a program calls that the library does not see."""
    return ctypes.CDLL("libc.so.6", use_errno=True)


def ask(sock, rounds):
    """Round trips of all sizes up to some kilobytes; whether each came back."""
    rand = random.Random(rounds)
    for i in range(rounds):
        data = bytes([i % 256]) * rand.randrange(1, 5000)
        sock.sendall(data)
        if exactly(sock, len(data)) != data:
            return False
    return True


def finish(sock, child):
    """The orderly end."""
    sock.shutdown(socket.SHUT_WR)
    end = sock.recv(1)
    sock.close()
    return {"end": end.decode(), "child": reap(child)}


@scenario
def edge_and_fionread(seed):
    """A reader that stops at a short read when FIONREAD says that there is no more, and waits for an edge."""
    stream = ends.stream(int(seed), 1_500_000)

    def peer(sock):
        rand, at = random.Random(seed), 0
        while at < len(stream):
            n = rand.choice([3, 100, 5000, 70_000])
            sock.sendall(stream[at : at + n])
            at += n

    sock, child = pair(peer)
    sock.setblocking(False)
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN | select.EPOLLET)
    got, stuck = bytearray(), False
    while len(got) < len(stream) and not stuck:
        stuck = not epoll.poll(PATIENCE_S)
        while True:
            ready = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4))[0]
            try:
                data = sock.recv(4096)
            except BlockingIOError:
                break
            got += data
            if not data or (len(data) < 4096 and ready <= len(data)):
                break
    return {"stuck": stuck, "right": got == stream, "child": reap(child)}


@scenario
def young_across_fork(rounds):
    """Parent and child write on a connection that is about to earn its lane; the child is killed."""
    rand = random.Random(1)
    seen = []
    for _ in range(int(rounds)):
        result_in, result_out = os.pipe()

        def reader(sock, result_out=result_out):
            counts = {b: 0 for b in b"pc"}
            while data := sock.recv(3000):
                for b in set(data):
                    counts[b] += data.count(b)
            os.write(result_out, struct.pack("qq", *counts.values()))

        sock, child = pair(reader, warm=False)
        page = mmap.mmap(-1, 8)
        for _ in range(20):
            sock.sendall(b"ppp")
        writer = os.fork()
        if writer == 0:
            while True:
                for _ in range(30):
                    sock.sendall(b"ccc")
                    page[:] = struct.pack("q", struct.unpack("q", page[:])[0] + 3)
        for _ in range(rand.randrange(5, 300)):
            sock.sendall(b"ppp")
        while struct.unpack("q", page[:])[0] < 30:
            os.sched_yield()
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        for _ in range(20):
            sock.sendall(b"ppp")
        sock.shutdown(socket.SHUT_WR)
        parents, childs = struct.unpack("qq", os.read(result_in, 16))
        counted = struct.unpack("q", page[:])[0]
        seen.append([reap(child), parents % 3, 0 <= childs - counted <= 3])
        sock.close()
    return {"seen": seen}


@scenario
def closefrom_in_a_child():
    """A child closes everything and starts a program; the parent's connection is none the worse."""
    sock, child = pair(echo)
    fine = ask(sock, 20)
    for how in range(6):
        helper = os.fork()
        if helper == 0:
            if how % 3 == 0:
                os.closerange(3, 5000)
            elif how % 3 == 1:
                ctypes.CDLL(None).closefrom(3)
            else:
                ctypes.CDLL(None).close_range(3, ctypes.c_uint(0xFFFFFFFF), 0)
            if how < 3:
                os.execv("/bin/true", ["true"])
            os._exit(0)
        fine = fine and reap(helper) == 0 and ask(sock, 20)
    return {"fine": fine, **finish(sock, child)}


@scenario
def unseen_close():
    """A number is closed where the library does not see it, and names another connection then."""
    libc, fine, numbers, codes = libc_itself(), True, set(), []
    for _ in range(5):
        sock, child = pair(echo)
        fine = fine and ask(sock, 30)
        numbers.add(sock.fileno())
        libc.close(sock.detach())
        codes.append(reap(child))
    return {"fine": fine, "one": len(numbers) == 1, "codes": codes}


@scenario
def unseen_change():
    """Numbers become something else where the library does not see it: what was a file, a pipe, a set or nothing is a
    connection then, made there or copied from one on its lane, and what was a connection is a file."""
    libc, fine, ends_seen = libc_itself(), [], []
    address = (ctypes.c_char * 16)()

    def a_file():
        fd = os.open("/dev/zero", os.O_RDWR)
        return fd, os.read(fd, 10) == bytes(10) and os.write(fd, b"x") == 1

    def a_pipe():
        fd, other = os.pipe()
        os.write(other, b"pipe")
        os.close(other)
        return fd, os.read(fd, 10) == b"pipe"

    def a_set():
        epoll = select.epoll()
        fd = os.dup(epoll.fileno())
        return fd, epoll.poll(0) == []

    def a_number():
        fd = fcntl.fcntl(0, fcntl.F_DUPFD, 200)
        os.close(fd)
        return fd, ends.outcome(os.read, fd, 1) == "EBADF"

    def made(fd):
        """A connection with this number, by calls of libc itself, to an echo."""
        lst = ends.listener()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            sock, _ = lst.accept()
            echo(sock)
            os._exit(0)
        struct.pack_into("=H2s4s8x", address, 0, socket.AF_INET, struct.pack("!H", lst.getsockname()[1]), b"\x7f\0\0\1")
        libc.close(fd)
        own = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
        assert libc.connect(own, address, 16) == 0
        if own != fd:
            assert libc.dup2(own, fd) == fd
            libc.close(own)
        lst.close()
        return socket.socket(fileno=fd), child

    def copied(fd):
        """A connection that the library knows comes to have this number, which it has not seen closed."""
        sock, child = pair(echo)
        libc.close(fd)
        os.dup2(sock.fileno(), fd)
        sock.close()
        return socket.socket(fileno=fd), child

    for before in (a_file, a_pipe, a_set, a_number):
        for after in (made, copied):
            fd, was = before()
            sock, child = after(fd)
            fine.append([was, ask(sock, 40)])
            libc.close(sock.detach())
            ends_seen.append(reap(child))
            # And a file again, at which nothing is to be found of the connection.
            again, was = a_file()
            fine.append([was])
            os.close(again)
    return {"fine": fine, "ends": ends_seen}


@scenario
def helpers():
    """Programs are started beside a connection, with all descriptors closed or not, while it carries a stream."""
    sock, child = pair(echo)
    codes, fine = [], True
    for i in range(20):
        text = ends.stream(i, 50_000)
        sock.sendall(text)
        # Unread bytes and all.
        codes.append(subprocess.run(["true"], close_fds=i % 4 != 3, check=False).returncode)
        fine = exactly(sock, len(text)) == text and fine
    return {"fine": fine, "codes": codes, **finish(sock, child)}


@scenario
def killed_in_a_send(seed, trigger):
    """Writers are killed at random moments, while a relative holds their connection and says nothing: a reader that
    sleeps in epoll_wait gets what their calls have sent, though nobody writes any more, and no end comes."""
    rand = random.Random(int(seed))
    page = memoryview(mmap.mmap(-1, 16)).cast("Q")
    sent, got = 0, 1

    def reader(sock):
        sock.setblocking(False)
        epoll = select.epoll()
        epoll.register(sock, select.EPOLLIN | (select.EPOLLET if trigger == "edge" else 0))
        while True:
            epoll.poll()
            try:
                while data := sock.recv(1000):
                    page[got] += len(data)
                return
            except BlockingIOError:
                pass

    sock, child = pair(reader)
    lost = more = 0
    for _ in range(WRITERS):
        writer = os.fork()
        if writer == 0:
            while True:
                sock.send(b"w" * 32)
                page[sent] += 32
                # The reader falls asleep, so that each send rings.
                time.sleep(rand.choice([0, 0.0001]))
        goal = page[sent] + 32 * rand.randrange(1, 20)
        while page[sent] < goal:
            os.sched_yield()
        for _ in range(rand.randrange(2000)):
            pass
        ends.kill(writer)
        end = time.monotonic() + PATIENCE_S / 4
        while page[got] < page[sent] and time.monotonic() < end:
            time.sleep(0.001)
        lost += page[got] < page[sent]
        # One send may have been done without having said so. If it had not rung either, its bytes come with the next.
        more += page[got] - page[sent]
        page[sent] = page[got]
    sock.shutdown(socket.SHUT_WR)
    code = reap(child)
    more += page[got] - page[sent]
    return {"lost": lost, "right": 0 <= more <= 32 * WRITERS, "child": code}


@scenario
def rewritten_environment():
    """The program writes its title over its environment, as servers do, before its first connection."""
    environ = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    i = 0
    while environ[i]:
        length = len(ctypes.string_at(environ[i]))
        ctypes.memset(environ[i], ord("x"), length)
        i += 1
    sock, child = pair(echo)
    return {"fine": ask(sock, 200), **finish(sock, child)}


@scenario
def one_cpu():
    """Both ends and a third process share one CPU: who looks instead of sleeping hinders who is looked for."""
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    rival = os.fork()
    if rival == 0:
        signal.alarm(60)
        while True:
            pass
    try:
        sock, child = pair(echo)
        return {"fine": ask(sock, 100), **finish(sock, child)}
    finally:
        os.kill(rival, signal.SIGKILL)
        os.waitpid(rival, 0)


@scenario
def edge_of_room():
    """A sender that is told EAGAIN waits for the edge of "writable", beside a stream that comes in."""
    total = 12_000_000
    stream = ends.stream(5, total)

    def peer(sock):
        got = bytearray()
        while len(got) < total:
            data = sock.recv(20_000)
            if not data:
                break
            got += data
            sock.sendall(b"y" * 5)
        assert bytes(got) == stream, "the stream"

    sock, child = pair(peer)
    sock.setblocking(False)
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    sent, stuck = 0, False
    while sent < total and not stuck:
        stuck = not epoll.poll(PATIENCE_S)
        try:
            while sock.recv(1000):
                pass
        except BlockingIOError:
            pass
        try:
            while sent < total:
                sent += sock.send(stream[sent : sent + 60_000])
        except BlockingIOError:
            pass
    sock.setblocking(True)
    # What the peer still answers is read, or its last sends would fail.
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(65536):
        pass
    return {"stuck": stuck, "sent": sent, "child": reap(child)}


def pair_that_waits():
    """A pair whose peer reads to the end once a byte is written to the descriptor that comes third."""
    hear, tell = os.pipe()

    def peer(sock):
        os.read(hear, 1)
        while sock.recv(65536):
            pass

    return *pair(peer), tell


def fill(sock):
    """Sends until there is no room."""
    assert ends.fill(sock)[1] == "EAGAIN"


@scenario
def one_shot_after_eagain():
    """A program that asks for "writable" once, after it was told EAGAIN: the kernel, which has it all the time, is not
    asked again and again. It is told once."""
    sock, child, tell = pair_that_waits()
    sock.setblocking(False)
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN)
    epoll.poll(0)
    epoll.unregister(sock)
    fill(sock)
    epoll.register(sock, select.EPOLLOUT | select.EPOLLONESHOT)
    early = bool(epoll.poll(0))
    with open(f"/proc/self/fdinfo/{epoll.fileno()}", encoding="ascii") as info:
        lines = [line.split() for line in info if line.startswith("tfd:")]
    asked = [int(words[3], 16) & select.EPOLLOUT != 0 for words in lines if int(words[1]) == sock.fileno()]
    os.write(tell, b"g")
    told = epoll.poll(30) == [(sock.fileno(), select.EPOLLOUT)]
    again = bool(epoll.poll(0))
    epoll.modify(sock, select.EPOLLOUT | select.EPOLLONESHOT)
    enabled = bool(epoll.poll(30))
    sock.setblocking(True)
    return {"early": early, "asked": asked, "told": told, "again": again, "enabled": enabled, **finish(sock, child)}


@scenario
def nested_epoll():
    """A set in a set, which is waited for."""
    sock, child = pair(echo)
    inner, outer = select.epoll(), select.epoll()
    inner.register(sock, select.EPOLLIN)
    outer.register(inner, select.EPOLLIN)
    poll = select.poll()
    poll.register(outer, select.POLLIN)
    told = []
    for i in range(300):
        sock.sendall(b"x" * 100)
        told.append(outer.poll(PATIENCE_S) == [(inner.fileno(), select.EPOLLIN)])
        told.append(bool(poll.poll(PATIENCE_S * 1000)))
        told.append(inner.poll(PATIENCE_S) == [(sock.fileno(), select.EPOLLIN)])
        exactly(sock, 100)
    return {"told": all(told), **finish(sock, child)}


@scenario
def room_for_two(first, second):
    """A sender that was told EAGAIN waits in two ways at once: both hear of room, one after the other."""
    sock, child, tell = pair_that_waits()
    sock.setblocking(False)
    waiters = [ends.Waiter(sock, way, select.POLLOUT) for way in (first, second)]
    before = [waiter.wait(0) for waiter in waiters]
    fill(sock)
    # The kernel's buffers may grow while they are filled.
    while any([waiter.wait(0) for waiter in waiters]):
        fill(sock)
    os.write(tell, b"g")
    told = [waiter.wait(30) for waiter in waiters]
    sock.setblocking(True)
    return {"before": before, "told": told, **finish(sock, child)}


class Interest(ctypes.Structure):
    """`struct epoll_event`."""

    _pack_ = 1 if platform.machine() == "x86_64" else 0
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


def by_libc(call, *args):
    """A call of libc's, as a program makes it."""
    result = getattr(ctypes.CDLL(None, use_errno=True), call)(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), call)
    return result


@scenario
def young_beside_a_lane(order):
    """Two connections are in a set under the same data, by edges. One comes onto a lane, the other stays young: each
    edge is told, whosesoever it is."""

    def worn(sock):
        ends.warm_up(sock, True)
        echo(sock)

    def unused(sock):
        first[0].close()
        sock.sendall(b"c")
        echo(sock)

    first = pair(worn, warm=False)
    socks, children = zip(first, pair(unused, warm=False))
    exactly(socks[1], 1)
    set_fd = by_libc("epoll_create1", 0)
    for sock in socks if order == "first" else socks[::-1]:
        interest = Interest(select.EPOLLIN | select.EPOLLET, 7)
        by_libc("epoll_ctl", set_fd, 1, sock.fileno(), ctypes.byref(interest))
    told = (Interest * 8)()
    ends.warm_up(socks[0], False)
    while by_libc("epoll_wait", set_fd, told, 8, 0):
        pass  # of the warm-up
    seen = []
    for which in [1, 1, 0, 1, 0, 0, 1]:
        socks[which].sendall(b"x")
        got = None
        # What wakes the one may be told of the other, too: they cannot be told apart.
        while got is None and by_libc("epoll_wait", set_fd, told, 8, PATIENCE_S * 1000):
            try:
                got = socks[which].recv(10, socket.MSG_DONTWAIT).decode()
            except BlockingIOError:
                pass
        seen.append([told[0].events, told[0].data, got])
    return {"seen": seen, "ends": [finish(*end) for end in zip(socks, children)]}


if __name__ == "__main__":
    sys.exit(main(TABLE))
