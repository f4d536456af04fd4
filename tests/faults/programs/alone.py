"""Connections whose other end takes part in the meeting and then is not there.

The process under the library meets a *stand-in*: a program without the library that speaks the rendezvous by hand
(docs/spec/shm.md, section 6), so that each of its steps comes exactly when the scenario wants it. Both exchange small messages
over TCP meanwhile, by which the library takes its steps.
"""

import array
import errno
import fcntl
import functools
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time

import ends
from ends import exactly, main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

# Offsets in the control page. crates/sdp-shm/src/layout.rs asserts the same ones when it is compiled.
CONTROL, ENDS, END_BYTES, ATTACHED, PINNED = 4096, 128, 128, 0, 8
PASSED_ON = 3
HALVES, HALF_BYTES, TRUSTS = 384, 768, 408
RING = 64 << 10
MESSAGE = 32
# Messages to and fro after which something must have happened.
MOST = 20_000
# Of them with which an end counts enough calls to give up, and the time that it waits at least.
CALLS, GIVES_UP_S = 1200, 2.2
# Bound of a wait for what takes seconds.
PATIENCE_S = 40
ADD_SEALS, SHRINK_GROW_SEAL = 1033, 1 | 2 | 4
# The first five words of every set-up message: kind, flags, buffers, length, numbers.
SETUP = "!BBHI8x"


def meeting_place(sock):
    """The abstract name at which a connection's ends meet."""
    return b"\0sdp/2/" + b"".join(sorted(binary(*at) for at in (sock.getsockname(), sock.getpeername())))


def binary(address, port):
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address) + struct.pack("!H", port)


def packet(kind, number, tail):
    """A packet without bell and page."""
    return struct.pack("<4sHBBIIQ", b"SDPr", 2, kind, 0, 0, number, 1234) + tail


def hello(sock):
    (source, port), (destination, _) = sock.getsockname(), sock.getpeername()
    said = struct.pack(SETUP, 0, 0, 0xFFFF, 92) + struct.pack("!BBBBIIH2x", 0x22, 0x40, 0, 1, 4096, 4096, port)
    return (said + bytes(12) + socket.inet_aton(source) + bytes(12) + socket.inet_aton(destination)).ljust(92, b"\0")


def hello_ack():
    return (struct.pack(SETUP, 1, 0, 0xFFFF, 196) + struct.pack("!BBBBI", 0x22, 0, 0, 1, 4096)).ljust(196, b"\0")


class StandIn:
    """One end without the library."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.place = meeting_place(self.sock)
        self.side = int(binary(*self.sock.getsockname()) > binary(*self.sock.getpeername()))
        self.handle = os.open(f"/proc/self/fd/{self.sock.fileno()}", os.O_PATH)
        self.segment = None

    def trip(self, count=1):
        """A message to and fro: two calls of the other end."""
        for _ in range(count):
            self.sock.sendall(b"q" * MESSAGE)
            assert exactly(self.sock, MESSAGE) == b"q" * MESSAGE

    def until(self, condition):
        """Messages to and fro until something is so. False: it never is."""
        for _ in range(MOST):
            if value := condition():
                return value
            self.trip()
        return False

    def knock(self):
        """Connects to the meeting place. None: nobody listens there."""
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            unix.connect(self.place)
        except ConnectionRefusedError:
            return unix.close()
        return unix

    def send(self, unix, what, *files):
        given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        unix.sendmsg([what], given, socket.MSG_NOSIGNAL)

    def join(self, unix):
        """Shows a segment, and waits for the answer."""
        file = os.memfd_create("sdp-conn", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, CONTROL + 2 * RING)
        fcntl.fcntl(file, ADD_SEALS, SHRINK_GROW_SEAL)
        self.segment = mmap.mmap(file, CONTROL + 2 * RING)
        self.send(unix, packet(1, RING, hello(self.sock)), file, self.handle)
        os.close(file)
        assert self.until(lambda: is_readable(unix)), "no answer"
        return len(unix.recv(4096)) == 24 + 196

    def take_join(self, listener):
        """Waits for somebody who joins: the connection, with his segment."""
        assert self.until(lambda: is_readable(listener)), "nobody joins"
        unix, _ = listener.accept()
        assert self.until(lambda: is_readable(unix)), "no packet"
        data, given, _, _ = unix.recvmsg(4096, socket.CMSG_SPACE(64))
        files = array.array("i", given[0][2])
        self.segment = mmap.mmap(files[0], CONTROL + 2 * struct.unpack_from("<I", data, 12)[0])
        for file in files:
            os.close(file)
        return unix

    def say_yes(self, unix):
        self.send(unix, packet(2, 0, hello_ack()), self.handle)

    def is_other_attached(self):
        at = ENDS + (self.side ^ 1) * END_BYTES + ATTACHED
        return struct.unpack_from("I", self.segment, at)[0] == 1

    def word_of_sleepers(self):
        """What the other end says of those who sleep there, once it says something."""
        at = HALVES + self.side * HALF_BYTES + TRUSTS
        return self.until(lambda: struct.unpack_from("I", self.segment, at)[0])

    def disown(self):
        struct.pack_into("I", self.segment, ENDS + self.side * END_BYTES + PINNED, PASSED_ON)


def is_offered(peer):
    """Whether somebody is at the meeting place; asked without going there."""
    name = peer.place.replace(b"\0", b"@")
    with open("/proc/net/unix", "rb") as table:
        return name in table.read()


def eventually(peer, condition):
    """As `until`, for what takes seconds."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return True
        peer.trip(CALLS // 20)
        time.sleep(0.01)
    return False


def unmet(peer):
    """Comes to the second meeting only."""
    seen = [
        eventually(peer, lambda: is_offered(peer)),
        eventually(peer, lambda: not is_offered(peer)),
        eventually(peer, lambda: is_offered(peer)),
    ]
    assert peer.join(peer.until(peer.knock))
    attached = bool(peer.until(peer.is_other_attached))
    return {"seen": seen, "attached": attached, "says": peer.word_of_sleepers()}


def is_readable(sock):
    return bool(select.select([sock], [], [], 0)[0])


def disowned(peer):
    """Joins, is told yes, and does not use the segment."""
    unix = peer.until(peer.knock)
    assert peer.join(unix)
    unix.close()
    alone = peer.until(peer.is_other_attached)
    peer.trip(300)
    before = peer.knock()
    peer.disown()
    # The other end is young again, and comes to the meeting place a second time, where all ends well.
    unix = peer.until(peer.knock)
    seen = {"alone": bool(alone), "offers": before is not None, "again": bool(unix)}
    assert peer.join(unix)
    return seen | {"attached": bool(peer.until(peer.is_other_attached))}


def late(peer, says_yes):
    """Listens, and takes its time: until the joiner has had enough, or only about that long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(peer.place)
    listener.listen(8)
    unix = peer.take_join(listener)
    peer.trip(CALLS)
    # Were this too short, nothing but the test would be lost: the answer would come in time.
    time.sleep(GIVES_UP_S)
    if says_yes:
        peer.say_yes(unix)
        attached = bool(peer.until(peer.is_other_attached))
        return {"attached": attached, "says": peer.word_of_sleepers()}
    gone = bool(peer.until(lambda: is_readable(unix)))
    try:
        peer.say_yes(unix)
        refused = None
    except OSError as error:
        refused = errno.errorcode[error.errno]
    unix = peer.take_join(listener)
    alone = peer.is_other_attached()
    peer.say_yes(unix)
    attached = bool(peer.until(peer.is_other_attached))
    return {"gone": gone, "refused": refused, "alone": alone, "attached": attached}


STAND_INS = {
    "disowned": disowned,
    "late_yes": functools.partial(late, says_yes=True),
    "unmet": unmet,
    "late_no": functools.partial(late, says_yes=False),
}


@scenario
def stand_in(name, port):
    """The process without the library."""
    peer = StandIn(int(port))
    seen = STAND_INS[name](peer)
    peer.sock.shutdown(socket.SHUT_WR)
    return seen | {"end": exactly(peer.sock, 1) == b""}


@scenario
def against(name):
    """The process with it: answers until the end."""
    listener = ends.listener()
    words = [sys.executable, __file__, "stand_in", name, str(listener.getsockname()[1])]
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as child:
        sock, _ = listener.accept()
        while data := exactly(sock, MESSAGE):
            sock.sendall(data)
        sock.close()
        said, _ = child.communicate(timeout=50)
    return json.loads(said) if child.returncode == 0 else {"failed": child.returncode}


if __name__ == "__main__":
    main(TABLE)
