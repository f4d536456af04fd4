"""Fork children that count in their parent's statistics page at first, and what becomes of that."""

import ctypes
import json
import os
import resource
import signal
import socket

import ends
from ends import exactly, reap, scenario as enter

TABLE = {}
# Calls after which a child has a page of its own, more than enough; and too few for that.
MANY, FEW = 40, 3
SIZE = 100


def scenario(function):
    return enter(TABLE, function)


def rounds(sock, count):
    for number in range(count):
        sock.sendall(bytes([number % 256]) * SIZE)
        assert exactly(sock, SIZE) == bytes([number % 256]) * SIZE


def fork(body, *args):
    """A child that is over when `body` returns."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            body(*args)
            code = 0
        finally:
            os._exit(code)
    return pid


def pages():
    """Inodes of the statistics pages that this process has mapped, and those that it has open."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        mapped = {line.split()[4] for line in file if "memfd:sdp-stats" in line}
    opened = set()
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        try:
            if "memfd:sdp-stats" in os.readlink(path):
                opened.add(str(os.stat(path).st_ino))
        except FileNotFoundError:
            continue  # the one that listed them
    return mapped, opened


def without_descriptors(action):
    """Does it where no descriptor can be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        return action()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fails_to_execute():
    try:
        os.execv("/nonexistent/program", ["program"])
    except FileNotFoundError:
        return
    raise AssertionError


def served(lst, count, after=lambda sock: None):
    """A child that accepts and echoes: `count` messages, and what comes then."""
    sock = lst.accept()[0]
    for _ in range(count):
        sock.sendall(exactly(sock, SIZE))
    after(sock)
    sock.close()


@scenario
def counted():
    """Children of all kinds, one after the other; bytes that each end's calls moved, and processes."""
    lst = ends.listener()
    here = socket.create_connection(lst.getsockname())
    first = lst.accept()[0]  # this process has its page
    here.sendall(b"x" * SIZE)
    assert exactly(first, SIZE)
    moved, processes, connections = SIZE, 1, 1

    def die(sock):
        os.kill(os.getpid(), signal.SIGKILL)

    def nested(sock):
        assert reap(fork(served, lst, FEW)) == 0
        rounds_of_own(sock)

    def rounds_of_own(sock):
        for _ in range(MANY):
            sock.sendall(exactly(sock, SIZE))

    def failed(sock):
        """An exec that fails, and a page that cannot be made at first."""
        fails_to_execute()
        without_descriptors(lambda: rounds_of_own(sock))
        rounds_of_own(sock)

    kinds = {
        "few": (None, 0, 1),
        "killed": (die, 0, 1),
        "killed later": (lambda sock: (rounds_of_own(sock), die(sock)), MANY, 1),
        "many": (rounds_of_own, MANY, 1),
        "nested": (nested, MANY, 2),
        "failed": (failed, 2 * MANY, 1),
    }
    codes = []
    for kind, (after, more, number) in kinds.items():
        child = fork(served, lst, FEW, *([after] if after else []))
        sock = socket.create_connection(lst.getsockname())
        rounds(sock, FEW)
        if kind == "nested":
            inner = socket.create_connection(lst.getsockname())
            rounds(inner, FEW)
            inner.close()
            moved += 2 * FEW * SIZE
        rounds(sock, more)
        codes.append(os.waitpid(child, 0)[1])
        sock.close()
        moved += 2 * (FEW + more) * SIZE
        processes += number
        connections += number
    return {"codes": codes, "moved": moved, "processes": processes, "connections": connections}


@scenario
def leaves(how):
    """A child changes its privileges as a guest: not even the page of its parent is left to it."""
    lst = ends.listener()
    here = socket.create_connection(lst.getsockname())
    there = lst.accept()[0]
    here.sendall(b"x" * SIZE)
    assert exactly(there, SIZE)
    mine = pages()
    hear, tell = os.pipe()

    def child():
        before = pages()
        there.sendall(b"y" * SIZE)
        if how == "poor":
            without_descriptors(lambda: os.chroot("/"))
        else:
            os.chroot("/")
        maps, links = pages()
        os.write(tell, json.dumps([before == mine, sorted(maps & mine[0]), sorted(links & mine[1])]).encode())
        there.sendall(b"z" * SIZE)
        # The page that it has from here on, if it had none.
        again = socket.create_connection(lst.getsockname())
        again.sendall(b"a" * SIZE)

    code = reap(fork(child))
    was_guest, mapped, opened = json.loads(os.read(hear, 4096))
    fine = exactly(here, 2 * SIZE) == b"y" * SIZE + b"z" * SIZE
    fine = exactly(lst.accept()[0], SIZE) == b"a" * SIZE and fine
    return {
        "has_page": len(mine[0]) == 1 and len(mine[1]) == 1,
        "was_guest": was_guest,
        "mapped": mapped,
        "opened": opened,
        "code": code,
        "fine": fine,
    }


@scenario
def replaced():
    """A child closes what it inherited where the library does not see it, and has a file of its own there then."""
    libc = ctypes.CDLL("libc.so.6")  # past the hooks
    lst = ends.listener()
    here = socket.create_connection(lst.getsockname())
    there = lst.accept()[0]
    here.sendall(b"x" * SIZE)
    assert exactly(there, SIZE)

    def child():
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        page = [int(link.rsplit("/", 1)[1]) for link in links if os.path.islink(link) and "sdp-stats" in os.readlink(link)]
        number = page[0] if page else 192
        own = os.memfd_create("own")
        libc.close(number)
        assert libc.dup2(own, number) == number
        for _ in range(MANY):
            there.sendall(exactly(there, SIZE))
        assert os.path.samestat(os.fstat(number), os.fstat(own))

    served = fork(child)
    rounds(here, MANY)
    return {"code": reap(served)}


if __name__ == "__main__":
    ends.main(TABLE)
