"""Others that held a connection while it was young: it earns its lane once they hold it no more.

A connection is accepted and has carried nothing; a fork child got it, too, and lets go of it in one of many ways, or keeps it.
"""

import ctypes
import functools
import os
import signal
import socket
import subprocess

import ends
from ends import exactly, main, pair, reap

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
BULK = 1_000_000
ALL = ctypes.c_uint(0xFFFFFFFF)
CLOSE_RANGE_CLOEXEC = 4
libc = ctypes.CDLL(None, use_errno=True)


def libc_call(function, *args):
    """A libc function that answers 0."""
    assert function(*args) == 0, os.strerror(ctypes.get_errno())


def inheritable_but_for_exec(sock):
    """Inherited by images, until a call says for everything from it on: not so."""
    sock.set_inheritable(True)
    libc_call(libc.close_range, sock.fileno(), ALL, CLOSE_RANGE_CLOEXEC)


# What is kept open, to the process's end.
kept_numbers = []

# What the child does to let go; it lives on, unless it is said that it ends.
LETS_GO = {
    "close": lambda sock: sock.close(),
    "closefrom": lambda sock: libc.closefrom(sock.fileno()),
    "close_range": lambda sock: libc_call(libc.close_range, sock.fileno(), ALL, 0),
    "exec": lambda sock: sock.set_inheritable(False),
    "exec-close_range": inheritable_but_for_exec,
    "dup2": lambda sock: os.dup2(2, sock.fileno()),
    "exit": lambda sock: os._exit(0),
    "kill": lambda sock: os.kill(os.getpid(), signal.SIGKILL),
    # These keep it: as it is, by another number, for the image that is executed.
    "keep": lambda sock: None,
    "keep-other": lambda sock: (kept_numbers.append(os.dup(sock.fileno())), sock.close()),
    "exec-keep": lambda sock: sock.set_inheritable(True),
}


class Pipes:
    """How a holder says that it has let go, and is told to end; closed where nobody speaks of that.

    Made before the connection, so that what closes everything from that on leaves them.
    """

    def __init__(self):
        self.hear, self.hold = os.pipe()
        self.gone, self.told = os.pipe()

    def close(self, *names):
        """Closes some of the ends, or all."""
        for name in names or ("hear", "hold", "gone", "told"):
            os.close(getattr(self, name))


def forked(sock, how, pipes):
    """A child that lets go of the connection, and goes on until it is told; its id."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        pipes.close("hold", "gone")
        LETS_GO[how](sock)
        if how.startswith("exec"):
            os.dup2(pipes.hear, 0)
            os.execv("/bin/cat", ["cat"])  # which closes `told`
        os.close(pipes.told)
        os.read(pipes.hear, 1)
        os._exit(0)
    return child


def holder(sock, how, pipes):
    """Somebody who got the connection, by `fork` or `vfork`, and has let go of it; the function that reaps him."""
    if how == "posix_spawn":
        child = os.posix_spawn("/bin/cat", ["cat"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, pipes.hear, 0)])
        pipes.close("hear", "told")
    elif how == "popen":
        child = subprocess.Popen(["/bin/cat"], stdin=pipes.hear, close_fds=False).pid
        pipes.close("hear", "told")
    else:
        child = forked(sock, how, pipes)
        pipes.close("hear", "told")
        assert os.read(pipes.gone, 1) == b""
    if how in ("exit", "kill"):
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return lambda: reap(child)


def carry(sock):
    """The connection's work: it earns its lane, and moves bulk to and fro; whether all came."""
    ends.warm_up(sock, False)
    return ends.bulk(sock, BULK)


def connect(times):
    """Pipes, and a young connection to a process that works as often; (pipes, connection, the process's id)."""
    pipes = Pipes()

    def other_end(sock):
        pipes.close()
        for _ in range(times):
            ends.warm_up(sock, True)
            sock.sendall(exactly(sock, BULK))

    return pipes, *pair(other_end, warm=False)


def finish(sock, child):
    """The orderly end."""
    sock.shutdown(socket.SHUT_WR)
    end = ends.drain(sock, b"")
    sock.close()
    return {"end": end, "peer": reap(child)}


@scenario
def let_go(how, when):
    """`reaped`: who has ended is nothing any more; else he is a zombie while the connection works, or goes on."""
    pipes, sock, child = connect(1)
    wait = holder(sock, how, pipes)
    code = wait() if when == "reaped" else None
    fine = carry(sock)
    pipes.close("hold")
    return {"fine": fine, "holder": wait() if code is None else code, **finish(sock, child)}


@scenario
def kept(how, until):
    """Somebody keeps it while it works for the first time, or to its end."""
    pipes, sock, child = connect(4)
    wait = holder(sock, how, pipes)
    fine = carry(sock)
    if until == "later":
        pipes.close("hold")
        code = wait()
    fine = all([carry(sock) for _ in range(3)]) and fine
    end = finish(sock, child)
    if until == "end":
        pipes.close("hold")
        code = wait()
    return {"fine": fine, "holder": code, **end}


if __name__ == "__main__":
    main(TABLE)
