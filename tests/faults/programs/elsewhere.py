"""A process whose children are born into another process namespace, before its first socket or later.

`elsewhere.py scenario HOW WHEN`. Nothing here may be imported early that makes a socket or an epoll set, as
`socket` does, or the library would be at work before the namespace is changed.
"""

import ctypes
import json
import os
import signal
import struct
import sys

CLONE_NEWPID = 0x20000000
ROUNDS, TURNS, LAST = 60, 10, 300


def enter_namespace(how):
    """Children are born elsewhere from now on: in a new namespace, or in one that somebody holds.

    The processes that hold it.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function, *args):
        if function(*args) != 0:
            raise OSError(ctypes.get_errno(), function.__name__)

    if how == "unshare":
        call(libc.unshare, CLONE_NEWPID)
        return []
    hear, tell = os.pipe()
    maker = os.fork()
    if maker == 0:
        signal.alarm(60)
        call(libc.unshare, CLONE_NEWPID)
        first = os.fork()
        if first == 0:
            signal.pause()
        os.write(tell, struct.pack("!I", first))
        os.waitpid(first, 0)
        os._exit(0)
    first = struct.unpack("!I", os.read(hear, 4))[0]
    if how == "pidfd":
        call(libc.setns, os.pidfd_open(first), CLONE_NEWPID)
    else:
        names = os.open(f"/proc/{first}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        call(libc.setns, names, CLONE_NEWPID if how == "setns" else 0)
    return [first, maker]


def scenario(how, when, *held):
    """The child uses the connection in turn with its parent, and one of its own."""
    if when in ("first", "before-exec"):
        held = enter_namespace(how)
    if when == "before-exec":
        os.execv(sys.executable, [sys.executable, __file__, "scenario", how, "inherited", *map(str, held)])
    import socket

    import ends
    from ends import exactly

    sock, peer = ends.pair(ends.echo)
    if when == "later":
        held = enter_namespace(how)
    text = ends.stream(3, 1000)
    home = os.readlink("/proc/self/ns/pid")
    to_child, to_parent = socket.socketpair()

    def echoes(sock, rounds):
        fine = True
        for _ in range(rounds):
            sock.sendall(text)
            fine = exactly(sock, len(text)) == text and fine
        return fine

    def turns(me, first):
        fine = True
        if not first:
            me.recv(1)
        for _ in range(TURNS):
            fine = echoes(sock, ROUNDS) and fine
            me.send(b"x")
            me.recv(1)
        return fine

    child = os.fork()
    if child == 0:
        signal.alarm(30)
        to_child.close()
        fine = turns(to_parent, False)
        own, other = ends.pair(ends.echo)
        fine = echoes(own, LAST) and fine
        attached = ends.is_attached()
        own.shutdown(socket.SHUT_WR)
        fine = ends.reap(other) == 0 and fine
        print(f"child attached: {attached}", file=sys.stderr, flush=True)
        os._exit(0 if fine and os.readlink("/proc/self/ns/pid") != home else 1)
    to_parent.close()
    fine = turns(to_child, True)
    to_child.send(b"x")
    served = ends.reap(child)
    sock.shutdown(socket.SHUT_WR)
    result = {"fine": fine, "child": served, "peer": ends.reap(peer)}
    if held:
        first, maker = map(int, held)
        os.kill(first, signal.SIGKILL)
        assert os.waitpid(maker, 0)[1] == 0
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    signal.alarm(60)
    scenario(*sys.argv[2:])
