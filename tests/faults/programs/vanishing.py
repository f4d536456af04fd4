"""Peers that vanish as if their machine had lost its power, and segments of TCP that are lost: the loopback device
of a network namespace of the program's own is down for a while.

Nothing of a peer that is killed then, no FIN and no RST, comes through. Who is left has asked the kernel to find
that out, or hears of it once the device is up again.
"""

import encodings.idna  # noqa: F401 (for a child that is another user, who may not read it any more)
import fcntl
import functools
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
from pathlib import Path

import ends
import forging
from ends import answers, main, pair, readiness, started

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "oracle"))

import stream  # noqa: E402

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
PATIENCE_S = 40
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
# Bytes at most, each way, of a connection whose segments are lost.
LOSSY_BYTES = 1_000_000
# Segments that must have been lost, the most connections that are made for that, and how often the device is
# down in each.
LOSSES, LOSSY_ROUNDS, LOSSY_TIMES = 3, 40, 30


def device(is_up):
    """Puts the loopback device up or down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.Struct("16sh14x")
        name, flags = request.unpack(fcntl.ioctl(sock, GET_FLAGS, request.pack(b"lo", 0)))
        fcntl.ioctl(sock, SET_FLAGS, request.pack(name, flags | UP if is_up else flags & ~UP))


def retransmitted():
    """Segments that the namespace's kernel has sent more than once."""
    with open("/proc/self/net/snmp", encoding="ascii") as file:
        names, values = (line.split() for line in file if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def ask_kernel(sock):
    """The kernel asks an idle peer after a second whether it is there, and once more."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        sock.setsockopt(socket.IPPROTO_TCP, option, 1)


def wait(sock, call):
    """A call in which the end is waited for, and what it gave."""
    if call == "recv":
        return ends.outcome(lambda: len(sock.recv(10)))
    if call == "poll":
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLRDHUP)
        return [bits for _, bits in poll.poll(PATIENCE_S * 1000)]
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLET if call == "edge" else 0))
    return [bits for _, bits in epoll.poll(PATIENCE_S)]


WAITS = ["recv", "poll", "epoll", "edge"]


def survivor(call, way):
    """A process with a peer that it kills when the device is down; then what its calls give."""
    sock, child = pair(lambda _: signal.pause())
    sock.settimeout(None)
    ask_kernel(sock)
    ends.settle()
    way.sendall(b"r")
    way.recv(1)
    ends.kill(child)
    is_at_once = call == "write"
    seen = {"woken": wait(sock, "recv" if is_at_once else call)}
    if not is_at_once:
        seen["poll"] = readiness(sock)
        seen["read"] = ends.drain(sock, b"")
        seen["again"] = ends.drain(sock, b"")
    seen["write"] = ends.outcome(sock.send, b"x")
    seen["error option"] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    way.sendall(json.dumps(seen).encode())


def cut_off(body, calls):
    """Processes of this body, one for each wait, that go on once the device is down."""
    device(True)
    all_ = {call: started(body, call) for call in calls}
    for _, way in all_.values():
        assert way.recv(1) == b"r"
    device(False)
    for _, way in all_.values():
        way.sendall(b"g")
    return all_


@scenario
def vanished():
    """Peers are killed, and nothing tells of it: the kernel finds it out."""
    return answers(cut_off(survivor, [*WAITS, "write"]))


def hearer(call, way):
    """A process whose peer says its last words while the device is down, and is killed."""
    words = ends.stream(4, 3000)
    hear, tell = os.pipe()

    def peer(sock):
        os.read(hear, 1)
        sock.sendall(words)
        os.kill(os.getpid(), signal.SIGKILL)

    sock, child = pair(peer)
    sock.settimeout(None)
    ends.settle()
    way.sendall(b"r")
    way.recv(1)
    os.write(tell, b"g")
    ends.reap(child)
    way.sendall(b"k")
    seen = {"woken": wait(sock, call) != []}
    # Over TCP these are sent again, and the end of the stream after them.
    rest = words if call != "recv" else words[10:]
    seen["read"] = ends.drain(sock, rest, limit_s=PATIENCE_S)
    seen["write"] = ends.writes_until_error(sock)[0] in ("EPIPE", "ECONNRESET")
    way.sendall(json.dumps(seen).encode())


@scenario
def late_end():
    """Peers say something and are killed while nothing comes through; then the device is up again."""
    all_ = cut_off(hearer, WAITS)
    for _, way in all_.values():
        assert way.recv(1) == b"k"
    device(True)
    return answers(all_)


def exchange(seed, users):
    """The oracle's calls at both ends of a new connection, while the device is down again and again; what was wrong."""
    rng = random.Random(seed)
    up, down = (stream.payload(seed + i, rng.randint(LOSSY_BYTES // 2, LOSSY_BYTES)) for i in (0, 1))

    def client(sock):
        assert not stream.run_end(sock, "client", seed, up, down)

    def other_user():
        if users == "two":
            forging.become(forging.PEER_USER)

    sock, child = pair(client, first=other_user)
    done = threading.Event()

    def lose():
        # Not for ever: each segment that is lost again doubles the kernel's patience.
        for _ in range(LOSSY_TIMES):
            if done.wait(rng.random() * 0.02):
                break
            device(False)
            done.wait(rng.random() * 0.01)
            device(True)

    thread = threading.Thread(target=lose)
    thread.start()
    failures = stream.run_end(sock, "server", seed, down, up)
    sock.close()
    code = ends.reap(child)
    done.set()
    thread.join()
    return [*failures, *([f"child: {code}"] if code else [])]


@scenario
def lossy(seed, users="one"):
    """Every byte, once, in order, until the kernel has had to send some segments again."""
    device(True)
    failures = []
    for i in range(LOSSY_ROUNDS):
        if not failures and (i < 2 or retransmitted() < LOSSES):
            failures += exchange(100 * int(seed) + i, users)
    return {"failures": failures, "again": retransmitted() >= LOSSES}


if __name__ == "__main__":
    main(TABLE)
