"""A rule file that changes while a program runs: what new connections get.

The file is the one that `LIBSDP_CONFIG_FILE` names. Whether a rule is in force shows in what `connect` answers in
front of a server without the library: `use sdp client` refuses it, everything else does not.
"""

import errno
import functools
import os
import pathlib
import socket
import threading
import time

import ends
from strict import Server, attempt

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
FILE = pathlib.Path(os.environ["LIBSDP_CONFIG_FILE"])
STRICT = "use sdp client * *:*\n"
BOTH = "use both client * *:*\n"
# What is promised: new connections go by what the file said this long ago.
PROMISE_S = 1.0


def settle():
    time.sleep(PROMISE_S)


def told(port):
    """`talked` or the error's name, of one new connection."""
    return attempt("127.0.0.1", port)


@scenario
def changes(how):
    """Refused at first; then the file is replaced or written to, or goes; then it is as it was."""
    port = Server("127.0.0.1", plain=True).port
    seen = [told(port)]
    if how == "write":
        FILE.write_text(BOTH)
    elif how == "rename":
        other = FILE.with_name("other")
        other.write_text(BOTH)
        other.rename(FILE)
    elif how == "remove":
        FILE.unlink()
    elif how == "empty":
        FILE.write_text("")
    settle()
    seen.append(told(port))
    FILE.write_text(STRICT)
    settle()
    seen.append(told(port))
    return seen


@scenario
def broken(what):
    """A file that cannot be taken keeps the former rules; one that can ends that."""
    port = Server("127.0.0.1", plain=True).port
    seen = [told(port)]
    if what == "errors":
        FILE.write_text(BOTH + "use nothing at all\n")
    elif what == "fifo":
        FILE.unlink()
        os.mkfifo(FILE)
    elif what == "directory":
        FILE.unlink()
        FILE.mkdir()
    settle()
    seen.append(told(port))
    if what == "directory":
        FILE.rmdir()
    elif what == "fifo":
        FILE.unlink()
    FILE.write_text(BOTH)
    settle()
    seen.append(told(port))
    return seen


@scenario
def options():
    """Values of options hold as rules do: without a fabric a strict client finds no way."""
    port = Server("127.0.0.1").port
    seen = [told(port)]
    FILE.write_text(STRICT + "option fabrics none\n")
    settle()
    return [*seen, told(port)]


@scenario
def child():
    """A fork child goes by the file as it is by then, and so does its parent."""
    port = Server("127.0.0.1", plain=True).port
    seen = [told(port)]
    hear, tell = os.pipe()
    if os.fork() == 0:
        FILE.write_text(BOTH)
        settle()
        os.write(tell, told(port).encode())
        os._exit(0)
    os.close(tell)
    seen.append(os.read(hear, 100).decode())
    os.wait()
    return [*seen, told(port)]


@scenario
def listener():
    """A server that has listened all along: its connections get what the file says now."""
    listening = ends.listener()
    port = listening.getsockname()[1]
    ended = threading.Event()

    def serve():
        listening.settimeout(0.05)
        while not ended.is_set():
            try:
                sock, _ = listening.accept()
            except TimeoutError:
                continue
            sock.settimeout(None)
            while data := sock.recv(4096):
                sock.sendall(data)
            sock.close()

    server = threading.Thread(target=serve)
    server.start()
    seen = [told(port)]
    FILE.write_text(STRICT + "use tcp server * *:*\n")
    settle()
    seen.append(told(port))
    seen.append(told(port))
    ended.set()
    server.join()
    return seen


@scenario
def threads():
    """Many threads connect while the file changes all the time; nothing but its two answers is ever seen."""
    port = Server("127.0.0.1", plain=True).port
    answers, until = set(), time.monotonic() + 3
    lock = threading.Lock()

    def connect():
        while time.monotonic() < until:
            sock = socket.socket()
            code = sock.connect_ex(("127.0.0.1", port))
            sock.close()
            with lock:
                answers.add(errno.errorcode.get(code, "talked"))

    workers = [threading.Thread(target=connect) for _ in range(6)]
    for worker in workers:
        worker.start()
    texts = [BOTH + "# \n" * 50, STRICT * 900]
    number = 0
    while time.monotonic() < until:
        number += 1
        other = FILE.with_name("other")
        other.write_text(texts[number % 2])
        other.rename(FILE)
        time.sleep(0.5)
    for worker in workers:
        worker.join()
    return sorted(answers)


@scenario
def root():
    """In another root directory the rules stay what they were."""
    port = Server("127.0.0.1", plain=True).port
    seen = [told(port)]
    other = FILE.with_name("root")
    other.mkdir()
    os.chroot(other)
    os.chdir("/")
    settle()
    return [*seen, told(port)]


@scenario
def relative():
    """A file with a relative name is read once."""
    port = Server("127.0.0.1", plain=True).port
    seen = [told(port)]
    FILE.write_text(BOTH)
    settle()
    return [*seen, told(port)]


if __name__ == "__main__":
    ends.main(TABLE)
