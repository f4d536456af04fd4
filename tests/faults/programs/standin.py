"""A stand-in: one end of a connection without the library, which speaks the meeting by hand.

Rendezvous, segment and packets are those of docs/spec/shm.md, sections 2 and 6. Both ends exchange messages over TCP
meanwhile, by which the end under the library takes its steps: it sends back whatever it gets.
"""

import array
import fcntl
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys

import ends
from ends import exactly

# Offsets in the control page. crates/sdp-shm/src/layout.rs asserts the same ones when it is compiled.
CONTROL, ENDS, END_BYTES, ATTACHED, INTENT, RESET = 4096, 128, 128, 0, 8, 16
PASSED_ON = 3
HALVES, HALF_BYTES = 384, 768
# Words of a half: the producer's, and the consumer's.
TAIL, SWITCHES, LANE, SENT, ENTRIES, READ, TRUSTS = 0, 16, 132, 136, 144, 392, 408
ON_SDP = 1
RING, BELL_BYTES = 64 << 10, 8192
MESSAGE = 32
# Messages to and fro after which something must have happened.
MOST = 20_000
ADD_SEALS, SHRINK_GROW_SEAL = 1033, 1 | 2 | 4
# Bytes of a packet before the set-up message.
PREFIX = 24
JOIN, ACCEPT, BELL_AND_PAGE = 1, 2, 1 | 2
# The first five words of every set-up message: kind, flags, buffers, length, numbers.
SETUP = "!BBHI8x"


def name_of(sock):
    """What the ends of a connection call it: the 36 bytes after the prefix."""
    return b"".join(sorted(binary(*at) for at in (sock.getsockname(), sock.getpeername())))


def binary(address, port):
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address) + struct.pack("!H", port)


def side_of(sock):
    return int(binary(*sock.getsockname()) > binary(*sock.getpeername()))


def packet(kind, number, tail, flags=0):
    """A packet; bell and page only if the flags say so."""
    return struct.pack("<4sHBBIIQ", b"SDPr", 3, kind, flags, 0, number, 1234) + tail


def hello(sock):
    (source, port), (destination, _) = sock.getsockname(), sock.getpeername()
    said = struct.pack(SETUP, 0, 0, 0xFFFF, 92) + struct.pack("!BBBBIIH2x", 0x22, 0x40, 0, 1, 4096, 4096, port)
    return (said + bytes(12) + socket.inet_aton(source) + bytes(12) + socket.inet_aton(destination)).ljust(92, b"\0")


def hello_ack():
    return (struct.pack(SETUP, 1, 0, 0xFFFF, 196) + struct.pack("!BBBBI", 0x22, 0, 0, 1, 4096)).ljust(196, b"\0")


def is_readable(sock):
    return bool(select.select([sock], [], [], 0)[0])


def sealed(name, size):
    """A memory file as both ends want it."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, ADD_SEALS, SHRINK_GROW_SEAL)
    return file


class StandIn:
    """One end without the library."""

    def __init__(self, sock):
        self.sock = sock
        self.place = b"\0sdp/3/" + name_of(sock)
        self.side = side_of(sock)
        self.handle = os.open(f"/proc/self/fd/{sock.fileno()}", os.O_PATH)
        self.segment, self.answer = None, b""

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

    def join(self, unix, *bell_and_page):
        """Shows a segment, and waits for the answer."""
        file = sealed("sdp-conn", CONTROL + 2 * RING)
        self.segment = mmap.mmap(file, CONTROL + 2 * RING)
        flags = BELL_AND_PAGE if bell_and_page else 0
        self.send(unix, packet(JOIN, RING, hello(self.sock), flags), file, self.handle, *bell_and_page)
        os.close(file)
        assert self.until(lambda: is_readable(unix)), "no answer"
        self.answer = unix.recv(4096)
        return len(self.answer) == PREFIX + 196

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
        self.send(unix, packet(ACCEPT, 0, hello_ack()), self.handle)

    def word(self, at):
        return struct.unpack_from("I", self.segment, at)[0]

    def put(self, at, word):
        struct.pack_into("I", self.segment, at, word)

    def is_other_attached(self):
        return self.word(ENDS + (self.side ^ 1) * END_BYTES + ATTACHED) == 1

    def word_of_sleepers(self):
        """What the other end says of those who sleep there, once it says something."""
        at = HALVES + self.side * HALF_BYTES + TRUSTS
        return self.until(lambda: self.word(at))

    def disown(self):
        self.put(ENDS + self.side * END_BYTES + INTENT, PASSED_ON)


def answer(program, name):
    """The process under the library, at the other end of the stand-in `name` of `program`: sends back what it gets, until
    the end."""
    listener = ends.listener()
    words = [sys.executable, program, "stand_in", name, str(listener.getsockname()[1])]
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as child:
        sock, _ = listener.accept()
        told = "end"
        try:
            while data := exactly(sock, MESSAGE):
                sock.sendall(data)
        except ConnectionResetError:
            told = "reset"
        sock.close()
        said, _ = child.communicate(timeout=50)
    return {**json.loads(said), "told": told} if child.returncode == 0 else {"failed": child.returncode}
