"""A server whose connection goes on in a relay, and a client that does not answer when it is asked for it.

    relays.py serve PORT AT HOW SCRATCH    answers AT requests, waits for more, and hands over, HOW: exec or pass
    relays.py ask HOST PORT AT HOW SCRATCH sends requests, and then, HOW:
        leaves   UNREAD bytes; when it is told to it becomes an image that has the connection and does nothing
        full     MUCH, which its kernel takes; the last UNREAD bytes of that when it is told to
        silent   UNREAD bytes, and reads nothing of what the server sends before it hands over
    relays.py hold FD SCRATCH              has the connection, without the library; says what it sees, a line each

SCRATCH/go-NAME: whoever waits for it goes on. WORDS of the environment: kept (so many MiB of memory that the server has),
reaper (orphans come to the server), flood (the server sends until nothing is taken), first (the server reads so many bytes,
when it is told to, before it hands over), thread (another thread hands over).
"""

import array
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

UNREAD = 30_000
MUCH = 3 << 20
WORDS = dict(word.split("=") for word in os.environ.get("RELAYS", "").split())
PR_SET_CHILD_SUBREAPER = 36


def take(sock, count):
    """Exactly `count` bytes, or what comes before the end."""
    got = bytearray()
    while len(got) < count:
        piece = sock.recv(min(count - len(got), 1 << 16))
        if not piece:
            break
        got += piece
    return bytes(got)


def answer(sock, count):
    for _ in range(count):
        head = take(sock, 4)
        sock.sendall(head + take(sock, *struct.unpack("!I", head)))


def ask(sock, count):
    for index in range(count):
        body = bytes([index & 0xFF]) * 700
        sock.sendall(struct.pack("!I", len(body)) + body)
        assert take(sock, 704)[4:] == body


def bytes_of(count):
    return random.Random(count).randbytes(count)


def wait_outside(scratch, name):
    """Says that it has come here, and waits until it may go on, without a call on a connection."""
    (scratch / f"at-{name}").touch()
    while not (scratch / f"go-{name}").exists():
        time.sleep(0.01)


def without_library():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def become(sock, scratch):
    os.set_inheritable(sock.fileno(), True)
    words = [sys.executable, __file__, "hold", str(sock.fileno()), str(scratch)]
    os.execve(sys.executable, words, without_library())


def pass_on(sock, scratch):
    """Another process gets the connection; this one has no child then but that."""
    ours, theirs = socket.socketpair()
    words = [sys.executable, __file__, "receive", str(theirs.fileno()), str(scratch)]
    helper = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=without_library())
    theirs.close()
    ours.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))])
    sock.close()
    wait_outside(scratch, "wait")
    assert helper.wait() == 0
    try:
        print("child", os.waitpid(-1, 0), flush=True)
    except ChildProcessError:
        print("no child", flush=True)


def serve(port, at, how, scratch):
    kept = bytearray(int(WORDS.get("kept", 0)) << 20)
    for page in range(0, len(kept), 4096):
        kept[page] = 1
    if "reaper" in WORDS:
        import ctypes

        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    listener = socket.create_server(("", port))
    sock, _ = listener.accept()
    listener.close()
    answer(sock, at)
    select.select([sock], [], [])
    if "flood" in WORDS:
        sock.setblocking(False)
        quiet = 0
        while quiet < 20:
            try:
                sock.send(bytes(1 << 16))
                quiet = 0
            except BlockingIOError:
                quiet += 1
                time.sleep(0.02)
        sock.setblocking(True)
    if "first" in WORDS:
        wait_outside(scratch, "first")
        count = int(WORDS["first"])
        assert len(take(sock, count)) == count
    wait_outside(scratch, "hand")
    hand_over = become if how == "exec" else pass_on
    if "thread" in WORDS:
        thread = threading.Thread(target=hand_over, args=(sock, scratch))
        thread.start()
        thread.join()
    else:
        hand_over(sock, scratch)


def receive(fd, scratch):
    ours = socket.socket(fileno=fd)
    _, (found,), _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
    ours.close()
    hold(*array.array("i", found[2]), scratch)


def hold(fd, scratch):
    sock = socket.socket(fileno=fd)
    (scratch / "at-hold").touch()
    for step in Path(scratch / "steps").read_text(encoding="ascii").split():
        name, _, value = step.partition("=")
        if name == "wait":
            wait_outside(scratch, value)
            continue
        try:
            if name == "take":
                count, _, skip = value.partition("+")
                wanted = bytes_of(int(count))[int(skip or 0):]
                print("all" if take(sock, len(wanted)) == wanted else "wrong", flush=True)
            elif name == "end":
                print("more" if sock.recv(1) else "end", flush=True)
            elif name == "send":
                sock.sendall(bytes_of(int(value)))
                print("sent", flush=True)
            elif name == "close":
                sock.close()
        except OSError as error:
            print(type(error).__name__, flush=True)


def client(host, port, at, how, scratch):
    sock = socket.socket()
    if how == "full":
        # Beyond the limit that is everybody's.
        sock.setsockopt(socket.SOL_SOCKET, 32, 2 * MUCH)  # SO_SNDBUFFORCE
    sock.connect((host, port))
    ask(sock, at)
    if how == "full":
        data = bytes_of(MUCH)
        sock.sendall(data[:-UNREAD])
        wait_outside(scratch, "more")
        sock.sendall(data[-UNREAD:])
        wait_outside(scratch, "client")
    else:
        sock.sendall(bytes_of(UNREAD))
        wait_outside(scratch, "client")
        if how == "leaves":
            become(sock, scratch / "client")
    print("asks", flush=True)
    sock.shutdown(socket.SHUT_WR)
    if how == "silent":
        count = 0
        while piece := sock.recv(1 << 16):
            count += len(piece)
        print("took", count, flush=True)


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "serve":
        serve(int(words[0]), int(words[1]), words[2], Path(words[3]))
    elif command == "ask":
        client(words[0], int(words[1]), int(words[2]), words[3], Path(words[4]))
    else:
        {"receive": receive, "hold": hold}[command](int(words[0]), Path(words[1]))
