"""Holders that get a connection with bytes unread in the ring, and know only the kernel's stream.

`peer` is the other end throughout: it sends what is left unread, and once the new holder has told what it
got, goes on talking with it.
"""

import contextlib
import ctypes
import functools
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import zlib

import ends
from ends import drain, exactly, main, pair

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

# What the peer says to the new holder, which sends it back.
SECOND = ends.stream(2, 30_000)
# On which descriptor a new image finds the connection.
NUMBERS = {"standard": 0, "numbered": 30}
# There is nobody to go on talking with.
GONE = ("closed", "killed")
LITTLE_ROOM = 65_536
USER, OTHER_USER = 54321, 54322
PR_SET_DUMPABLE = 4


class Peer:
    """Sends a text, is as it is meant to be at the hand-over, and talks with the new holder.

    `reading`: in a receive call. `silent`: it calls nothing of the library. `stopped`: by a signal.
    `closed`, `killed`: gone. `undumpable`: silent, and nobody without privileges may look into it.
    `other-user`: silent. `stuffed`: silent, and its kernel takes little.
    `pipes`: of an object like this one in another image.
    """

    def __init__(self, how, text, *, second=SECOND, pipes=(), is_echoed=False):
        self.how, self.text, self.second, self.is_echoed = how, text, second, is_echoed
        self.pipes = [int(fd) for fd in pipes] or [*os.pipe(), *os.pipe()]
        self.sent, self.tells_sent, self.goes_on, self.go_on = self.pipes
        self.pid = None

    def __call__(self, sock):
        os.close(self.go_on)
        if self.how == "undumpable":
            assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
        if self.how == "stuffed":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LITTLE_ROOM)
        sock.sendall(self.text)
        os.write(self.tells_sent, b"s")
        if self.how == "closed":
            return

        def talk():
            assert os.read(self.goes_on, 1)
            sock.sendall(self.second)

        sender = threading.Thread(target=talk)
        sender.start()
        if self.how != "reading":
            sender.join()
        if self.is_echoed:
            assert exactly(sock, len(self.text)) == self.text, "first part"
        assert exactly(sock, len(self.second)) == self.second, "second part"
        sender.join()
        sock.shutdown(socket.SHUT_WR)
        assert drain(sock, b"") == (0, "EOF", True)

    def settle(self):
        """Waits until everything is sent and the peer is as it is meant to be."""
        assert os.read(self.sent, 1)
        if self.how == "closed":
            assert ends.reap(self.pid) == 0
            return
        ends.until_asleep(self.pid)
        if self.how == "killed":
            ends.kill(self.pid)
        elif self.how == "stopped":
            os.kill(self.pid, signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)

    def finish(self):
        """Lets it talk; its exit status, 0 if it is gone."""
        if self.how == "stopped":
            os.kill(self.pid, signal.SIGCONT)
        if self.how not in GONE:
            os.write(self.go_on, b"g")
        for fd in self.pipes:
            os.close(fd)
        return 0 if self.how in GONE else ends.reap(self.pid)


def receiver(image, size, there, tells):
    """A process of that image, to which the connection is passed on."""
    holder = os.fork()
    if holder == 0:
        os.dup2(tells, 2)
        os.set_inheritable(there.fileno(), True)
        os.execv(image, [image, "take", str(size), "from", str(there.fileno())])
    return holder


def executor(image, size, way, sock, tells, closed):
    """A child that becomes that image with the connection, when its parent has closed it."""
    holder = os.fork()
    if holder == 0:
        assert os.read(closed, 1)
        os.dup2(tells, 2)
        number = NUMBERS[way]
        os.dup2(sock.fileno(), number)
        os.execv(image, [image, "take", str(size), str(number)])
    return holder


def hand_over(how, way, image, size, *, prepare=None, meet=pair, peer=None, keeps=False):
    """One connection goes to a new holder; what that tells, and who was who.

    `prepare` is called with the socket just before. `meet` makes the connection to the peer. `keeps`: the parent of a new image closes it only when the image has read.
    """
    text = ends.stream(size, size)
    here, there = socket.socketpair()
    reads, tells = os.pipe()
    closed, tells_closed = os.pipe()
    if way == "passed":
        holder = receiver(image, size, there, tells)
    peer = peer or Peer(how, text)
    sock, peer.pid = meet(peer)
    port = sock.getpeername()[1]
    peer.settle()
    if prepare:
        prepare(sock)
    if way == "passed":
        socket.send_fds(here, [b"x"], [sock.fileno()])
    else:
        holder = executor(image, size, way, sock, tells, closed)
    if not keeps:
        sock.close()
    os.write(tells_closed, b"c")
    os.close(tells)
    with os.fdopen(reads) as told:
        seen = json.loads(told.readline())
    sock.close()
    codes = [peer.finish(), ends.reap(holder)]
    for fd in (closed, tells_closed):
        os.close(fd)
    for end in (here, there):
        end.close()
    fine = [seen.pop("bytes"), seen.pop("sum")] == [size, zlib.adler32(text)]
    return {"fine": fine, "relayed": seen.pop("port") != port, "codes": codes, **seen}


@scenario
def unread(how, way, image, *sizes):
    """Bytes left unread, some sizes one after another."""
    turns = [hand_over(how, way, image, int(size)) for size in sizes]
    return {size: {key: turn[key] for key in ("fine", "relayed", "codes", "end")} for size, turn in zip(sizes, turns)}


@scenario
def kept(how, way, image, size):
    """The parent of the new image keeps the connection open, and does not use it."""
    turn = hand_over(how, way, image, int(size), keeps=True)
    return {key: turn[key] for key in ("fine", "relayed", "codes", "end")}


def popen(argv, sock, tells, **options):
    """Python's `subprocess`: a vfork child, unless it can do with `posix_spawn`."""
    process = subprocess.Popen(argv, stderr=tells, **options)
    process.returncode = 0  # not for `subprocess` to reap
    return process.pid


def searched(image, argv, sock, tells):
    """The image is not in the first directory of PATH, nor is a program found at the first name: exec fails before it
    does not."""
    with tempfile.TemporaryDirectory() as empty:
        path = f"{empty}:{os.path.dirname(image)}"
        name = os.path.basename(image)
        return popen([name, *argv[1:]], sock, tells, stdin=sock, env={"PATH": path}, executable=name)


def spawned(argv, sock, tells, number):
    actions = [(os.POSIX_SPAWN_DUP2, tells, 2)]
    if number is not None:
        actions.append((os.POSIX_SPAWN_DUP2, sock.fileno(), number))
    return os.posix_spawn(argv[0], argv, {}, file_actions=actions)


def forked(argv, sock, tells, number):
    pid = os.fork()
    if pid == 0:
        os.dup2(tells, 2)
        if number is not None:
            os.dup2(sock.fileno(), number)
        os.execv(argv[0], argv)
    return pid


# How a parent that keeps the connection starts a program with it, and the number that this finds it on; none: the
# parent's own.
STARTERS = {
    "popen-stdin": (lambda image, argv, sock, tells: popen(argv, sock, tells, stdin=sock), 0),
    "popen-pass": (lambda image, argv, sock, tells: popen(argv, sock, tells, pass_fds=[sock.fileno()]), None),
    "popen-searched": (searched, 0),
    "popen-spawn": (lambda image, argv, sock, tells: popen(argv, sock, tells, stdin=sock, close_fds=False), 0),
    "spawn-dup": (lambda image, argv, sock, tells: spawned(argv, sock, tells, 30), 30),
    "spawn-kept": (lambda image, argv, sock, tells: spawned(argv, sock, tells, None), None),
    "fork-dup": (lambda image, argv, sock, tells: forked(argv, sock, tells, 30), 30),
    "fork-stdin": (lambda image, argv, sock, tells: forked(argv, sock, tells, 0), 0),
    "fork-kept": (lambda image, argv, sock, tells: forked(argv, sock, tells, None), None),
}


@scenario
def started(how, starter, image, size):
    """A program is started with the connection by a parent that keeps it, and does not use it meanwhile."""
    text = ends.stream(size, int(size))
    reads, tells = os.pipe()
    peer = Peer(how, text)
    sock, peer.pid = pair(peer)
    port = sock.getpeername()[1]
    peer.settle()
    start, number = STARTERS[starter]
    if starter.endswith("-kept"):
        sock.set_inheritable(True)
    number = sock.fileno() if number is None else number
    holder = start(image, [image, "take", size, str(number)], sock, tells)
    os.close(tells)
    with os.fdopen(reads) as told:
        seen = json.loads(told.readline())
    sock.close()
    codes = [peer.finish(), ends.reap(holder)]
    fine = [seen["bytes"], seen["sum"]] == [int(size), zlib.adler32(text)]
    return {"fine": fine, "relayed": seen["port"] != port, "codes": codes, "end": seen["end"]}


@scenario
def not_started(how, image):
    """A program that is not there was to be started with the connection: the parent goes on with it."""
    text = ends.stream(1, 20_000)
    peer = Peer(how, text)
    sock, peer.pid = pair(peer)
    peer.settle()
    with contextlib.suppress(NotADirectoryError):
        subprocess.Popen([os.path.join(image, "none")], stdin=sock)
    fine = exactly(sock, len(text)) == text
    if how not in GONE:
        os.write(peer.go_on, b"g")
        fine = fine and exactly(sock, len(SECOND)) == SECOND
        sock.sendall(SECOND)
    sock.shutdown(socket.SHUT_WR)
    end = drain(sock, b"")
    return {"fine": fine, "end": end[1], "code": 0 if how in GONE else ends.reap(peer.pid)}


@scenario
def stuffed(way, image, size):
    """The peer is silent, and the kernel has no room for what is unread: over TCP it would not have been sent."""

    def prepare(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE_ROOM)

    turn = hand_over("stuffed", way, image, int(size), prepare=prepare)
    return {key: turn[key] for key in ("fine", "relayed", "codes", "end")}


def become(uid):
    """Another user, as a login does it."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


@scenario
def read_on(starter):
    """A parent that starts something with a connection whose peer is gone, and then reads all that is left."""
    text = ends.stream(1, 20_000)
    peer = Peer("closed", text)
    sock, peer.pid = pair(peer)
    peer.settle()
    head = {"args": ["head", "-c", "10"], "stdout": subprocess.DEVNULL, "env": {"PATH": os.environ["PATH"]}}
    if starter == "stdin":
        subprocess.run(**head, stdin=sock, check=True)
    elif starter == "stdout":
        subprocess.run(["true"], stdin=subprocess.DEVNULL, stdout=sock, check=True)
    elif starter == "passed":
        subprocess.run(["true"], pass_fds=[sock.fileno()], check=True)
    elif starter == "forked":
        assert ends.reap(forked(["/bin/true"], sock, sys.stderr.fileno(), 30)) == 0
    else:
        with contextlib.suppress(OSError):
            subprocess.run(["/none" if starter == "missing" else "/tmp"], stdin=sock, check=True)
    got = bytearray()
    while piece := sock.recv(65536):
        got += piece
    # The head of it may have read its first bytes, or all that it could get at one time.
    peer.finish()
    return {"rest": text.endswith(got) and (starter == "stdin" or got == text), "end": "EOF"}


@scenario
def refused(how, way, image, size):
    """The peer's socket is not to be had: it is another user's, or of a process that may not be looked into."""
    peer = Peer(how, b"")
    reads, writes = os.pipe()
    for fd in (*peer.pipes, reads, writes):
        os.set_inheritable(fd, True)
    pipes = [str(fd) for fd in peer.pipes]
    peer.pid = os.fork()
    if peer.pid == 0:
        become(OTHER_USER if how == "other-user" else USER)
        os.close(writes)
        os.execv(sys.executable, [sys.executable, __file__, "talker", str(reads), how, size, *pipes])
    become(USER)
    os.close(reads)
    words = ["giver", str(writes), str(peer.pid), how, way, image, size, *pipes]
    os.execv(sys.executable, [sys.executable, __file__, *words])


@scenario
def talker(reads, how, size, *pipes):
    """The peer's process of `refused`."""
    os.close(int(pipes[0]))
    port = struct.unpack("!H", os.read(int(reads), 2))[0]
    with socket.create_connection(("127.0.0.1", port)) as sock:
        ends.warm_up(sock, True)
        Peer(how, ends.stream(int(size), int(size)), pipes=pipes)(sock)
    return {}


@scenario
def giver(writes, pid, how, way, image, size, *pipes):
    """The process of `refused` that hands the connection over."""

    def meet(_):
        lst = ends.listener()
        os.write(int(writes), struct.pack("!H", lst.getsockname()[1]))
        sock, _ = lst.accept()
        lst.close()
        ends.warm_up(sock, False)
        return sock, int(pid)

    peer = Peer(how, b"", pipes=pipes)
    turn = hand_over(how, way, image, int(size), meet=meet, peer=peer)
    return {key: turn[key] for key in ("fine", "relayed", "codes", "end")}


def lines(seed, count):
    """Text that a shell reads line by line."""
    return b"".join(b"%s\n" % ends.stream(seed + i, 40).hex().encode() for i in range(count))


def effective_user(pid):
    """Of a process."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[2]) for line in status if line.startswith("Uid:"))


@scenario
def strange(how, number, environment, *argv):
    """An image that cannot have the library gets the connection, and sends back what it reads from it; or, where
    the peer is gone, to its standard output. `environment`: `kept` or `cleared`."""
    number = int(number)
    text = lines(100, 300)
    peer = Peer(how, text, second=lines(1000, 300), is_echoed=True)
    closed, tells_closed = os.pipe()
    reads, writes = os.pipe()
    sock, peer.pid = pair(peer)
    peer.settle()
    begun, begins = os.pipe()  # ends when the image begins
    holder = os.fork()
    if holder == 0:
        assert os.read(closed, 1)
        os.dup2(sock.fileno(), number)
        os.dup2(writes if how in GONE else number, 1)
        os.execve(argv[0], argv, os.environ if environment == "kept" else {})
    sock.close()
    os.write(tells_closed, b"c")
    os.close(writes)
    os.close(begins)
    assert os.read(begun, 1) == b""
    user = effective_user(holder)
    codes = [peer.finish()]
    with os.fdopen(reads, "rb") as rest:
        is_fine = rest.read() == (text if how in GONE else b"")
    return {"fine": is_fine, "codes": [*codes, ends.reap(holder)], "user": user}


def set_many(sock):
    """State of a socket that its next holder would notice."""
    sock.setblocking(False)
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 61, 500_000)),
        (socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 62, 0)),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7)),
        (socket.SOL_SOCKET, socket.SO_PRIORITY, 3),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000),
        (socket.IPPROTO_IP, socket.IP_TOS, 0x10),
    ):
        sock.setsockopt(level, option, value)


def set_owner(sock):
    """Who is to get signals of the socket; none is sent, with nothing urgent and without O_ASYNC."""
    fcntl.fcntl(sock, fcntl.F_SETOWN, 1)
    fcntl.fcntl(sock, fcntl.F_SETSIG, signal.SIGRTMIN)


PREPARE = {"many": set_many, "none": None, "owner": set_owner}


@scenario
def state(how, way, image, what):
    """What state the new holder finds the socket in."""
    turn = hand_over(how, way, image, 1000, prepare=PREPARE[what])
    return {key: turn[key] for key in ("fine", "relayed", "state")}


if __name__ == "__main__":
    main(TABLE)
