"""Two processes that meet again and again, and what that makes them ask the kernel.

Both ends have the library. One that can tell a word of the other's memory is believed (docs/spec/shm.md, section 6.1); any
other has to be proven by sock_diag, which is asked by a socket that stays open.
"""

import ctypes
import functools
import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import threading

import ends
from ends import exactly, main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

CONNECTIONS = 4
MESSAGE = 32
TRIPS = 60
NETLINK_SOCK_DIAG = "4"
# prctl and seccomp.
SET_DUMPABLE, SET_SECCOMP, CAPBSET_DROP, SET_NO_NEW_PRIVS = 4, 22, 24, 38
FILTER, ALLOW, RETURN = 2, 0x7FFF0000, 6
CAP_SYS_PTRACE = 19
# mov eax, 57 (fork); syscall; ret: no function of libc.
FORK = bytes.fromhex("b8390000000f05c3")
SO_BINDTODEVICE = 25

LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(*words):
    assert LIBC.prctl(*words, *[0] * (5 - len(words))) == 0, os.strerror(ctypes.get_errno())


def filtered():
    """Begins the next program under a filter of system calls, one that lets everything pass."""
    program = ctypes.create_string_buffer(struct.pack("=HBBI", RETURN, 0, 0, ALLOW))
    filters = ctypes.create_string_buffer(struct.pack("=H6xQ", 1, ctypes.addressof(program)))
    prctl(SET_NO_NEW_PRIVS, 1)
    prctl(SET_SECCOMP, FILTER, ctypes.c_void_p(ctypes.addressof(filters)))


def weaker():
    """The next program of a privileged user has one capability less than others of that user."""
    prctl(CAPBSET_DROP, CAP_SYS_PTRACE)


BEFORE = {"equal": None, "filtered": filtered, "weaker": weaker}


def has_asked():
    """Whether this process has a socket open by which sock_diag is asked."""
    with open("/proc/self/net/netlink", encoding="utf-8") as table:
        rows = [line.split() for line in table][1:]
    askers = {row[-1] for row in rows if row[1] == NETLINK_SOCK_DIAG}
    held = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
        held |= {found[1]} if found else set()
    return bool(askers & held)


def segments():
    """Inodes of the segments that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sorted({int(line.split()[4]) for line in maps if "memfd:sdp-conn" in line})


class Client:
    """The other process: it does what it is told, one word a line."""

    def __init__(self, port, kind="equal"):
        words = [sys.executable, __file__, "client", str(port)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=BEFORE[kind]
        )

    def tell(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def do(self, order):
        self.tell(order)
        return self.hear()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0


def connect(port, bound=None):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if bound:
        device, number = bound
        if device:
            sock.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, device.encode())
        sock.bind(("127.0.0.1", number))
    sock.connect(("127.0.0.1", port))
    return sock


def finish(sock):
    """Ends a connection of which the other end has read everything, in order, and waits until that end has closed."""
    sock.shutdown(socket.SHUT_WR)
    assert exactly(sock, 1) == b""
    sock.close()


def trip(sock, letter):
    """A message to and fro; whether it came back."""
    message = letter.encode() * MESSAGE
    sock.sendall(message)
    return exactly(sock, MESSAGE) == message


def send(sock, letter):
    """A message that nobody answers."""
    try:
        sock.send(letter.encode() * MESSAGE, socket.MSG_DONTWAIT)
    except OSError:
        pass
    return True


@scenario
def client(port):
    """The end that connects, as its standard input says."""
    port, socks = int(port), {}
    for line in sys.stdin:
        order, *words = line.split()
        if order == "meet":
            sock = connect(port)
            ends.warm_up(sock, True)
            said = segments()
            finish(sock)
        elif order == "asked":
            said = has_asked()
        elif order == "connect":
            name, device, number = words
            socks[name] = connect(port, (device if device != "-" else None, int(number)))
            said = socks[name].getsockname()[1]
        elif order == "trip":
            said = trip(socks[words[0]], words[0])
        elif order == "send":
            said = send(socks[words[0]], words[0])
        elif order == "unbind":
            socks[words[0]].setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, b"")
            said = True
        elif order == "fork":
            said = in_a_child(port)
        print(json.dumps(said), flush=True)
    return {}


def in_a_child(port):
    """A connection made by the child of a fork that nobody sees: the segments that it has mapped then."""
    hear, tell = os.pipe()
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(FORK)
    fork = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    child = fork()
    if child == 0:
        sock = connect(port)
        ends.warm_up(sock, True)
        os.write(tell, json.dumps(segments()).encode())
        finish(sock)
        os._exit(0)
    os.close(tell)
    said = json.loads(os.read(hear, 4096))
    os.close(hear)
    assert os.waitpid(child, 0)[1] == 0
    return said


def serve_one(listener):
    """Accepts a connection, and answers to its end: the segments mapped meanwhile."""
    sock, _ = listener.accept()
    ends.warm_up(sock, False)
    used = segments()
    assert exactly(sock, 1) == b""
    sock.close()
    return used


def meet(listener, other):
    """A connection from beginning to end: the segments mapped here and there."""
    other.tell("meet")
    return serve_one(listener), other.hear()


@scenario
def again(kind):
    """Connection after connection: one segment, and who asked the kernel about it."""
    listener = ends.listener()
    other = Client(listener.getsockname()[1], kind)
    used = [meet(listener, other) for _ in range(CONNECTIONS)]
    same = all(a == b == used[0][0] and len(a) == 1 for a, b in used)
    seen = {"same": same, "asked": {"server": has_asked(), "client": other.do("asked")}}
    other.end()
    return seen


@scenario
def hidden():
    """Others may not read the process's memory any more: what they told before counts no longer."""
    listener = ends.listener()
    other = Client(listener.getsockname()[1])
    used = [meet(listener, other)[0]]
    used.append(meet(listener, other)[0])
    before = has_asked()
    prctl(SET_DUMPABLE, 0)
    used.append(meet(listener, other)[0])
    other.end()
    return {"same": used == [used[0]] * 3, "before": before, "after": has_asked()}


@scenario
def forked():
    """A child that nobody saw being made does not come to its parent's meetings."""
    listener = ends.listener()
    other = Client(listener.getsockname()[1])
    (first,), _ = meet(listener, other)
    other.tell("fork")
    here = serve_one(listener)
    is_new = [any(number != first for number in used) for used in (here, other.hear())]
    other.end()
    return {"new": is_new}


@scenario
def bound(when):
    """Two sockets of the same addresses, of which one is, or was, bound to a device, and its other end is reset."""
    listener = ends.listener()
    other = Client(listener.getsockname()[1])
    for _ in range(2):
        meet(listener, other)
    other.tell("connect a lo 0")
    forlorn, _ = listener.accept()
    number = other.hear()
    other.tell(f"connect b - {number}")
    sock, _ = listener.accept()
    assert other.hear() == number
    if when == "unbound":
        other.do("unbind a")
    echo = threading.Thread(target=ends.echo, args=(sock,))
    echo.start()
    fine = []
    for _ in range(TRIPS):
        other.do("send a")
        fine.append(other.do("trip b"))
    other.end()
    echo.join()
    forlorn.close()
    return {"fine": fine == [True] * TRIPS}


if __name__ == "__main__":
    main(TABLE)
