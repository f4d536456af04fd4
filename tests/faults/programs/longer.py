"""A server that gives more unread bytes back than the ring has room for, and the connection is reset meanwhile.

    longer.py serve PORT AT SCRATCH       answers AT requests; when the client has sent (the file `sent`) and there is `go`
        it sends an urgent byte, for which the stream goes back to TCP; it is to hear of a reset. Its process id is in `server`;
        then there is `closed`, and it waits for `end`
    longer.py ask HOST PORT AT SCRATCH HOW   after AT requests sends what the kernel takes, ENOUGH to MUCH bytes, and says in `sent`
        how many. HOW: still (does nothing more) or poor (receives, without memory for more than it has)
"""

import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path

MUCH = 1 << 20
# More than the ring has room for.
ENOUGH = 192 * 1024
SIZE = 700


def take(sock, count):
    got = b""
    while len(got) < count:
        piece = sock.recv(count - len(got))
        assert piece, len(got)
        got += piece
    return got


def say(scratch, name, what):
    new = scratch / f"{name}.new"
    new.write_text(str(what), encoding="ascii")
    new.rename(scratch / name)


def wait(scratch, name):
    while not (scratch / name).exists():
        time.sleep(0.01)


def serve(port, at, scratch):
    listener = socket.create_server(("", port))
    sock, _ = listener.accept()
    for _ in range(at):
        sock.sendall(take(sock, SIZE))
    wait(scratch, "sent")
    say(scratch, "server", os.getpid())
    wait(scratch, "go")
    try:
        sock.send(b"!", socket.MSG_OOB)
        while sock.recv(65536):
            pass
        raise AssertionError("the end of the stream")
    except (ConnectionResetError, BrokenPipeError):
        sock.close()
    say(scratch, "closed", "")
    wait(scratch, "end")


def ask(host, port, at, scratch, how):
    sock = socket.create_connection((host, port))
    for _ in range(at):
        sock.sendall(bytes(SIZE))
        take(sock, SIZE)
    room = bytearray(1)
    sock.setblocking(False)
    sent = 0
    while sent < MUCH:
        try:
            sent += sock.send(bytes(min(65536, MUCH - sent)))
        except BlockingIOError:
            if sent >= ENOUGH:
                break
            # Between its two roads a stream has no room for a moment.
            select.select([], [sock], [])
    sock.setblocking(True)
    say(scratch, "sent", sent)
    if how == "still":
        signal.pause()
    words = Path("/proc/self/statm").read_text(encoding="ascii").split()
    most = int(words[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    try:
        sock.recv_into(room)
        raise AssertionError(room)
    except ConnectionResetError:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("reset")


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "serve":
        serve(int(words[0]), int(words[1]), Path(words[2]))
    else:
        ask(words[0], int(words[1]), int(words[2]), Path(words[3]), words[4])
