"""A process in a directory where ends meet that keeps them from it. It proves nothing, and may do what root of a container may.

Usage: squatter.py HOW DIRECTORY BYTES
HOW, to each name that appears: `removed` takes it away; `crowded` connects to it as often as it can, and says nothing. The others sit
at the name in the process's place, and to who comes: `silent` says nothing, `closed` closes, `garbage` sends noise with a descriptor,
`echoed` sends its own packet back, `later` tells it to come again.
It says "found" for each name, and when its input ends "met", with the number of who came or was disturbed, and how often the bytes, given in
hexadecimal, are in the memory that it was given.
"""

import mmap
import os
import select
import socket
import struct
import sys

MOST_FDS, MOST_BYTES = 8, 4096
KIND, REJECT, LATER = 6, 3, 4
CODE = 12


def listener_at(path):
    """A socket that listens at a path."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(path)
    os.chmod(path, 0o777)
    sock.listen(64)
    sock.setblocking(False)
    return sock


def answer(how, sock, packet, fds):
    """What somebody who came is told."""
    if how == "garbage":
        socket.send_fds(sock, [os.urandom(len(packet))], fds[:1])
    elif how == "echoed":
        socket.send_fds(sock, [packet], fds)
    elif how == "later":
        told = bytearray(packet)
        told[KIND], told[CODE:CODE + 4] = REJECT, struct.pack("<I", LATER)
        sock.send(told)


class Squatter:
    """What it sits at, and whom it has got."""

    def __init__(self, how, directory):
        self.how, self.directory = how, directory
        self.sits, self.kept, self.files, self.met = {}, [], [], 0

    def sit(self, path):
        """Does to a name what it does to names."""
        if self.how == "removed":
            os.unlink(path)
            self.met += 1
            return
        if self.how == "crowded":
            try:
                for _ in range(200):
                    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    sock.setblocking(False)
                    sock.connect(path)
                    self.kept.append(sock)
                    self.met += 1
            except OSError:
                return
            return
        os.unlink(path)
        self.sits[path] = listener_at(path)

    def serve(self, listener):
        """Somebody who came."""
        try:
            sock = listener.accept()[0]
        except BlockingIOError:
            return
        self.met += 1
        if self.how == "closed":
            sock.close()
            return
        self.kept.append(sock)
        sock.settimeout(10)
        packet, fds, _, _ = socket.recv_fds(sock, MOST_BYTES, MOST_FDS)
        self.files += fds
        try:
            answer(self.how, sock, packet, fds)
        except OSError:
            pass

    def turn(self):
        """One look."""
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if name.startswith(".") or path in self.sits:
                continue
            try:
                self.sit(path)
            except OSError:
                continue
            print("found", flush=True)
        for listener in self.sits.values():
            self.serve(listener)

    def seen(self, secret):
        """How often the bytes are in the memory that it got."""
        count = 0
        for file in self.files:
            size = os.fstat(file).st_size
            if size:
                with mmap.mmap(file, size, prot=mmap.PROT_READ) as memory:
                    count += bytes(memory).count(secret)
        return count


def main(how, directory, secret):
    """See above."""
    squatter = Squatter(how, directory)
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        squatter.turn()
    print("met", squatter.met, "seen", squatter.seen(bytes.fromhex(secret)), flush=True)
    for path in squatter.sits:
        os.unlink(path)


main(*sys.argv[1:])
