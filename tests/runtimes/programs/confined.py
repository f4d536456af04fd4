"""Processes that give up privileges, or live without what others have, with connections open.

Run from a directory that has `ends.py` too. Each scenario prints what the program saw, which must be
the same without the library; what only the library makes (mappings, descriptors) is listed with it and
must be empty in both.
"""

import ctypes
import functools
import os
import select
import signal
import socket
import struct
import sys
import threading

import ends
from ends import echo, exactly, main, pair

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

BULK = 1_500_000
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNET = 0x40000000
CLONE_NEWUSER = 0x10000000
PR_SET_KEEPCAPS = 8
CAPABILITY_VERSION = 0x20080522
# setuid, setgid, setreuid, setregid, setgroups, setresuid, setresgid, setfsuid
NUMBERS = {"x86_64": (105, 106, 113, 114, 116, 117, 119, 122), "aarch64": (146, 144, 145, 143, 159, 147, 149, 151)}
OTHER = 54321
STRANGER = 54322

libc = ctypes.CDLL(None, use_errno=True)
# Loaded while there is a directory to load it from.
"localhost".encode("idna")


def bulk(sock):
    """A bulk echo; whether all came back."""
    return ends.bulk(sock, BULK)


def small(sock, rounds=200):
    """Small echoes without a thread; whether all came back."""
    fine = True
    for i in range(rounds):
        message = struct.pack("!I", i) * (1 + i % 50)
        sock.sendall(message)
        fine = exactly(sock, len(message)) == message and fine
    return fine


def finish(sock, child):
    """Half closes and ends a pair whose peer echoes; how it ended."""
    sock.shutdown(socket.SHUT_WR)
    end = ends.drain(sock, b"")[:2]
    sock.close()
    return [*end, ends.reap(child)]


def become(uid):
    """Another user, as a login does it."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def capset():
    """All capabilities given up."""
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    assert libc.capset(header, bytes(24)) == 0, ctypes.get_errno()


def setuid_with_capabilities():
    """Another user who may do what the old one might, and so may look into all of /proc."""
    call(libc.prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setuid(OTHER)
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    call(libc.capget, header, held)
    words = list(struct.unpack("=6I", held.raw))
    words[0], words[3] = words[1], words[4]
    call(libc.capset, header, struct.pack("=6I", *words))


def by_number(which, *args):
    """A system call past libc's function for it."""
    number = NUMBERS[os.uname().machine][which]
    call(libc.syscall, ctypes.c_long(number), *args)


def enter(directory):
    """chroot, as servers do it."""
    os.chroot(directory)
    os.chdir("/")


def call(function, *args):
    """A libc function that answers 0."""
    assert function(*args) == 0, os.strerror(ctypes.get_errno())


# What is given up, or forbidden, and how.
CHANGES = {
    "setuid": lambda: become(OTHER),
    "setgid": lambda: os.setresgid(OTHER, OTHER, OTHER),
    "setgroups": lambda: os.setgroups([OTHER]),
    "capset": capset,
    "chroot": lambda: enter(os.path.dirname(__file__)),
    "newnet": lambda: call(libc.unshare, CLONE_NEWNET),
    "newuser": lambda: call(libc.unshare, CLONE_NEWUSER),
    "dumpable": lambda: call(libc.prctl, PR_SET_DUMPABLE, 0, 0, 0, 0),
    "nonewprivs": lambda: call(libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
    "toggle": lambda: (os.seteuid(OTHER), os.seteuid(0)),
    "keepcaps": setuid_with_capabilities,
    # One call, and nothing before it.
    "only-setuid": lambda: os.setuid(OTHER),
    "only-setgid": lambda: os.setgid(OTHER),
    "only-setreuid": lambda: os.setreuid(OTHER, OTHER),
    "only-setreuid-real": lambda: os.setreuid(OTHER, -1),
    "only-setregid": lambda: os.setregid(OTHER, OTHER),
    "only-setregid-real": lambda: os.setregid(OTHER, -1),
    "only-setresuid": lambda: os.setresuid(OTHER, OTHER, OTHER),
    "only-setresuid-saved": lambda: os.setresuid(-1, -1, OTHER),
    "only-setresgid-saved": lambda: os.setresgid(-1, -1, OTHER),
    "only-initgroups": lambda: os.initgroups("root", OTHER),
    "syscall-setuid": lambda: by_number(0, OTHER),
    "syscall-setgid": lambda: by_number(1, OTHER),
    "syscall-setreuid": lambda: by_number(2, OTHER, OTHER),
    "syscall-setregid": lambda: by_number(3, OTHER, OTHER),
    "syscall-setgroups": lambda: by_number(4, 1, struct.pack("=I", OTHER)),
    "syscall-setresuid": lambda: by_number(5, OTHER, OTHER, OTHER),
    "syscall-setresgid": lambda: by_number(6, OTHER, OTHER, OTHER),
    # Who does these may take them back.
    "only-seteuid": lambda: os.seteuid(OTHER),
    "only-setegid": lambda: os.setegid(OTHER),
    "only-setfsuid": lambda: libc.setfsuid(OTHER),
    "syscall-setresuid-effective": lambda: by_number(5, -1, OTHER, -1),
    # These change nothing.
    "same-setuid": lambda: os.setuid(0),
    "same-setresgid": lambda: os.setresgid(0, -1, 0),
}


class Eyes:
    """/proc of this process, opened while it could be."""

    def __init__(self, is_worker):
        self.maps = open("/proc/self/maps", encoding="utf-8")
        self.links = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
        self.hosts = set()
        if is_worker:
            with open(f"/proc/{os.getppid()}/maps", encoding="utf-8") as maps:
                self.hosts = self.statistics(maps)

    @staticmethod
    def statistics(maps):
        """Inodes of the statistics pages in a list of mappings."""
        return {line.split()[4] for line in maps if "memfd:sdp-stats" in line}

    @property
    def pages(self):
        """This process's own, as mapped now."""
        self.maps.seek(0)
        return self.statistics(self.maps)

    def left(self):
        """What of the library is left: shared memory and hidden descriptors.

        But for the statistics page, which only tools look at: it is nobody's way to anybody. Not so a parent's.
        """
        if self.pages & self.hosts:
            return ["the parent's statistics"]
        self.maps.seek(0)
        named = {line.split(None, 5)[-1].strip() for line in self.maps if "/" in line.split(None, 5)[-1]}
        for number in os.listdir(self.links):
            try:
                named.add(os.readlink(number, dir_fd=self.links))
            except FileNotFoundError:
                continue  # the one that listed them
        kinds = ("memfd:sdp", "/dev/zero", "[eventfd", "[eventpoll]", "[pidfd]")
        return sorted(
            name for name in named if any(kind in name for kind in kinds) and "sdp-stats" not in name
        )


def go_on(sock, what, unread, *, is_worker=False):
    """Changes, with bytes of the peer unread or not; (bytes as they should be, what is left)."""
    fine = True
    if unread == "unread":
        sock.sendall(b"u" * 3000)
        assert select.select([sock], [], [], 30)[0]
    eyes = Eyes(is_worker)
    CHANGES[what]()
    left = eyes.left()
    if unread == "unread":
        fine = exactly(sock, 3000) == b"u" * 3000
    fine = small(sock) and bulk(sock) and fine
    return fine, left, eyes


@scenario
def changes(what, unread):
    """A process on a lane changes, and its connection goes on."""
    sock, child = pair(echo)
    fine = small(sock)
    went_on, left, _ = go_on(sock, what, unread)
    return {"fine": fine and went_on, "left": left, "end": finish(sock, child)}


@scenario
def worker(what, unread):
    """A worker takes the connection over from its privileged parent, uses it, and changes."""
    sock, child = pair(echo)
    fine = small(sock)
    hear, tell = os.pipe()
    server = os.fork()
    if server == 0:
        signal.alarm(60)
        # Alone with it: used by two it would be TCP for another reason.
        os.read(hear, 1)
        went_on, left, _ = go_on(sock, what, unread, is_worker=True)
        sock.shutdown(socket.SHUT_WR)
        ended = sock.recv(1) == b""
        print(went_on, left, ended, file=sys.stderr, flush=True)
        os._exit(0 if went_on and ended and not left else 9)
    sock.close()
    os.write(tell, b"c")
    return {"fine": fine, "worker": ends.reap(server), "peer": ends.reap(child)}


@scenario
def threaded(what):
    """With a second thread, which might be using it, memory stays until the connection is closed."""
    sock, child = pair(echo)
    fine = small(sock)
    quiet = threading.Event()
    thread = threading.Thread(target=quiet.wait)
    thread.start()
    went_on, _, eyes = go_on(sock, what, "read")
    end = finish(sock, child)
    closed = eyes.left()
    quiet.set()
    thread.join()
    return {"fine": fine and went_on, "left": closed, "end": end}


@scenario
def young(what):
    """The change comes before the connection has earned anything; it stays what it was."""
    sock, child = pair(echo, warm=False)
    CHANGES[what]()
    return {"fine": small(sock) and bulk(sock), "end": finish(sock, child)}


@scenario
def later(what):
    """Connections of a process that changed: made by its new self, to a peer of the same kind."""
    CHANGES[what]()
    sock, child = pair(echo)
    return {"fine": bulk(sock), "end": finish(sock, child)}


@scenario
def one_echo():
    """Both ends, as whoever runs this."""
    sock, child = pair(echo)
    return {"fine": small(sock) and bulk(sock), "end": finish(sock, child)}


def execute(*words):
    os.execv(sys.executable, [sys.executable, __file__, *words])


@scenario
def as_user(uid):
    """Both ends belong to a user without an entry anywhere."""
    become(int(uid))
    execute("one_echo")


@scenario
def two_users():
    """A server of one user, a client of another, neither of them root."""
    lst = ends.listener()
    port = str(lst.getsockname()[1])
    lst.close()
    hear, tell = os.pipe()
    os.set_inheritable(tell, True)
    server = os.fork()
    if server == 0:
        become(OTHER)
        execute("serves", port, str(tell))
    os.close(tell)
    assert os.read(hear, 1) == b"l"
    client = os.fork()
    if client == 0:
        become(STRANGER)
        execute("asks", port)
    return {"client": ends.reap(client), "server": ends.reap(server)}


@scenario
def serves(port, tell):
    """The server of `two_users`."""
    lst = socket.socket()
    lst.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    lst.bind(("127.0.0.1", int(port)))
    lst.listen()
    os.write(int(tell), b"l")
    sock, _ = lst.accept()
    echo(sock)
    sock.close()
    return {}


@scenario
def asks(port):
    """The client of `two_users`."""
    sock = socket.create_connection(("127.0.0.1", int(port)))
    fine = small(sock) and bulk(sock)
    sock.shutdown(socket.SHUT_WR)
    fine = sock.recv(1) == b"" and fine
    sock.close()
    assert fine
    return {}


if __name__ == "__main__":
    main(TABLE)
