"""A process between two ends that meet in a directory: it takes the name of the one, sits there itself, and passes every packet and every
descriptor on. Then it has the memory of both rings.

Usage: passer.py DIRECTORY BYTES USER
Both ends are that user's, and so is this process when it sits at the name: they would see another one's doorbells.
It says "taken" when it sits at the name, "passed" when both ends have met it, and, when its input ends, how often the bytes, given in
hexadecimal, are in that memory.
"""

import mmap
import os
import pwd
import socket
import sys
import time

MOST_FDS, MOST_BYTES = 8, 4096
# Where a packet says what it is, and what it says when the ends have met.
KIND, ACCEPT = 6, 2


def listener_at(path):
    """A socket that listens at a path."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(path)
    os.chmod(path, 0o777)
    sock.listen(8)
    return sock


def take(directory):
    """Waits for a name, and takes it away; where it was, and what the other process listens at now."""
    while not (names := [name for name in os.listdir(directory) if not name.startswith(".")]):
        time.sleep(0.001)
    path, aside = os.path.join(directory, names[0]), os.path.join(directory, ".taken")
    os.rename(path, aside)
    return path, aside


def pass_on(near, far):
    """One packet with its descriptors; both."""
    packet, fds, _, _ = socket.recv_fds(near, MOST_BYTES, MOST_FDS)
    socket.send_fds(far, [packet], fds)
    return packet, fds


def meet(listener, aside):
    """Passes packets on until both ends have met; the descriptors of the end that joined."""
    while True:
        with listener.accept()[0] as joiner, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as offerer:
            offerer.connect(aside)
            fds = pass_on(joiner, offerer)[1]
            if pass_on(offerer, joiner)[0][KIND] == ACCEPT:
                return fds


def memory_among(fds):
    """The file of the segment: the largest."""
    return max(fds, key=lambda fd: os.fstat(fd).st_size)


def main(directory, secret, user):
    """See above."""
    path, aside = take(directory)
    os.setuid(pwd.getpwnam(user).pw_uid)
    sock = listener_at(path)
    print("taken", flush=True)
    fds = meet(sock, aside)
    print("passed", flush=True)
    sys.stdin.read()
    file = memory_among(fds)
    with mmap.mmap(file, os.fstat(file).st_size, prot=mmap.PROT_READ) as memory:
        print("seen", bytes(memory).count(bytes.fromhex(secret)), flush=True)
    for name in (path, aside):
        os.unlink(name)


main(*sys.argv[1:])
