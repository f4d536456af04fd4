"""Bytes that are unread on a lane, which cannot be handed over to who is to have the connection: an error, no clean end."""

import array
import ctypes
import functools
import os
import resource
import select
import socket
import sys

import ends
from ends import main
from sandbox import enter_sandbox

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

UNREAD = 20_000
NOBODY = 65534
PR_SET_NO_NEW_PRIVS = 38
PR_SET_DUMPABLE = 4
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_BIND_AND_CONNECT = 3

LIBC = ctypes.CDLL(None, use_errno=True)


def forbid_network():
    """Landlock's rules: no TCP port may be bound or connected to. False: this kernel has none of that."""
    if LIBC.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1) < 4:
        return False
    rules = (ctypes.c_uint64 * 2)(0, LANDLOCK_BIND_AND_CONNECT)
    fd = LIBC.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    assert fd >= 0 and LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert LIBC.syscall(LANDLOCK_RESTRICT_SELF, fd, 0) == 0
    os.close(fd)
    return True


def connected(text):
    """A connection whose peer has sent and shut down its sending side, so that its socket takes nothing back; the
    process of the peer, which ends with 7 when it was told of a reset."""

    def peer(sock):
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(100):
                pass
        except ConnectionResetError:
            os._exit(7)

    sock, child = ends.pair(peer)
    ends.settle(0.1)
    return sock, child


READER = """
import os, sys
n = 0
try:
    while data := os.read(int(sys.argv[1]), 65536): n += len(data)
    end = "EOF"
except OSError as error:
    end = "error"
print(n, end, flush=True)
"""


def judged(words, text):
    """Whether a reader got everything and the end, or an error."""
    count, end = words
    return {"honest": (int(count), end) == (len(text), "EOF") or end == "error"}


@scenario
def executed(where, share):
    """`where`: the process executes the reader itself, or a fork child does. `share`: whether the parent keeps the connection."""
    text = ends.stream(1, UNREAD)
    sock, child = connected(text)
    reads, tells = os.pipe()
    has_rules = forbid_network()
    number = sock.fileno()
    holder = os.fork()
    if holder == 0:
        os.close(reads)
        os.dup2(tells, 1)
        sock.set_inheritable(True)
        if where == "dup":
            os.dup2(number, 0)
            number = 0
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        os.execve(sys.executable, [sys.executable, "-S", "-c", READER, str(number)], environment)
    os.close(tells)
    if share == "alone":
        sock.close()
    words = os.fdopen(reads).read().split()
    os.waitpid(holder, 0)
    kept = None
    if share == "kept":
        kept = ends.drain(sock, text)[0]
    sock.close()
    return {**judged(words, text), "kept": kept, "child": ends.reap(child) in (0, 7), "rules": has_rules}


@scenario
def direct():
    """The process of the connection executes the reader itself."""
    text = ends.stream(1, UNREAD)
    reads, tells = os.pipe()
    process = os.fork()
    if process == 0:
        sock, child = connected(text)
        forbid_network()
        os.dup2(tells, 1)
        sock.set_inheritable(True)
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        os.execve(sys.executable, [sys.executable, "-S", "-c", READER, str(sock.fileno())], environment)
    os.close(tells)
    words = os.fdopen(reads).read().split()
    os.waitpid(process, 0)
    return judged(words, text)


@scenario
def no_process(peer):
    """The process of the connection may make no other one, and executes a reader. `peer`: whether the other end goes on to
    send, or has shut down its sending side, so that its socket takes nothing back."""
    text = ends.stream(1, UNREAD)
    hear, tell = os.pipe()
    reads, tells = os.pipe()

    def sender(sock):
        os.close(tell)
        os.close(tells)
        sock.sendall(text)
        if peer == "half":
            sock.shutdown(socket.SHUT_WR)
        os.read(hear, 1)
        os._exit(0)

    process = os.fork()
    if process == 0:
        os.close(reads)
        "localhost".encode("idna")  # read before the interpreter's files may not be
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        assert LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0  # as one that was this user's from the start
        sock, _ = ends.pair(sender)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.poll()
        ends.settle(0.1)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        os.write(tells, b"" if ends.outcome(os.fork) == "EAGAIN" else b"a process was made")
        os.dup2(tells, 1)
        sock.set_inheritable(True)
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        os.set_inheritable(tell, False)
        os.execve("/bin/sh", ["sh", "-c", f"exec cat <&{sock.fileno()}"], environment)
    os.close(tells)
    os.close(tell)
    got = os.fdopen(reads, "rb").read()
    status = ends.reap(process)
    return {"whole": got == text and status == 0, "part": text.startswith(got), "error": status != 0}


@scenario
def failing(how):
    """Calls that pass the connection on fail, or what they pass on is whole; and the bytes are still there for this process."""
    text = ends.stream(1, UNREAD)
    sock, child = connected(text)
    forbid_network()
    ours, theirs = socket.socketpair()
    passed = None
    LIBC.fdopen.restype = ctypes.c_void_p
    if how == "rights":
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
        passed = ends.outcome(ours.sendmsg, [b"x"], rights) == 1
    elif how == "fdopen":
        passed = LIBC.fdopen(sock.fileno(), b"r") is not None
    elif how == "splice":
        into, out = os.pipe()
        moved = ends.outcome(os.splice, sock.fileno(), out, 1) if hasattr(os, "splice") else "EINVAL"
        passed = moved != "EINVAL"
    elif how == "actions":
        room = ctypes.create_string_buffer(1024)
        assert LIBC.posix_spawn_file_actions_init(room) == 0
        passed = LIBC.posix_spawn_file_actions_adddup2(room, sock.fileno(), 9) == 0
    elif how == "spawn":
        sock.set_inheritable(True)
        passed = not isinstance(ends.outcome(os.posix_spawn, "/bin/true", ["true"], dict(os.environ)), str)
    rest = ends.drain(sock, text) if not passed else [UNREAD, "EOF", True]
    if how == "splice" and passed:
        rest = [len(ends.drain(sock, b"")) and UNREAD, "EOF", True]
    for end in (ours, theirs, sock):
        end.close()
    return {"passed": passed, "rest": rest, "child": ends.reap(child) in (0, 7)}


@scenario
def filtered(network):
    """A process with unread bytes enters a seccomp filter, after which the library does nothing any more."""
    text = ends.stream(1, UNREAD)
    sock, child = connected(text)
    if network == "forbidden":
        forbid_network()
    enter_sandbox()
    got, end, is_right = ends.drain(sock, text)
    sock.close()
    return {"honest": is_right and (got == UNREAD or end != "EOF"), "all": got == UNREAD, "child": ends.reap(child) in (0, 7)}


if __name__ == "__main__":
    main(TABLE)
