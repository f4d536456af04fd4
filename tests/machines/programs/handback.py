"""A server that hands its connection to somebody else in the middle of the stream, and a client that checks every byte.

    handback.py serve PORT HOW AT    answers AT requests itself; then HOW: exec, pass, child…
    handback.py go-on FD             answers the rest, on an inherited descriptor
    handback.py ask HOST PORT        sends requests, some of them several at once
    handback.py serve PORT half AT   answers them, reads the end of the stream, and becomes what sends the TAIL
    handback.py serve PORT half-child AT   the same, and a child sends a part of the TAIL, and this one the rest
    handback.py ask-half HOST PORT AT
    handback.py serve PORT mute AT   answers them, ends its stream, and becomes what takes the TAIL
    handback.py serve PORT mute-child AT   the same, and a child takes it
    handback.py serve PORT child-mute AT   a child sends a byte, ends the stream and takes the TAIL
    handback.py ask-mute HOST PORT AT
    handback.py serve PORT split AT   answers them; it reads to the end, while a child sends the TAIL
    handback.py ask-split HOST PORT AT END   END: before (ends its stream at once) or behind (when it has the TAIL)
    handback.py serve PORT many AT   answers AT requests on each of MANY connections, and becomes what answers the rest
    handback.py serve PORT many-child AT    a child becomes that
    handback.py ask-many HOST[,HOST] PORT AT FILE   after AT makes the file, and waits outside the library until it is gone
    handback.py serve PORT answers AT   answers AT requests, or all of them, and nothing else
    handback.py ask-forks HOST PORT AT   after AT requests a child sends the rest and ends the stream; then this one reads on
    handback.py ask-held HOST PORT AT           after AT requests waits for a byte; to children that wait for what is not there
    handback.py ask-late HOST PORT AT END       sends UNREAD bytes after AT requests; then waits outside the library until
        there is the file of HANDBACK_LATE, which the new holder makes when it has these bytes and has sent the TAIL; END:
        no (and goes on), before (ends its stream at once) or while (when it is asked to: the file behind the :)
    handback.py serve PORT exec-much AT    answers AT requests; once the file of HANDBACK_MUCH is there it becomes what takes
        as many bytes as that says, and sends the TAIL. A child keeps the connection
    handback.py serve PORT pass-much AT    passes it to such a one
    handback.py serve PORT child-much AT   a child is the first that uses it since the fork
    handback.py serve PORT asks-much AT    a child takes the rest, when this one has read a part, and closes it
    handback.py serve PORT split-much AT   a child sends the TAIL, while this one reads
    handback.py ask-much HOST PORT AT      sends what the kernel takes, at most MUCH bytes, and says how many in the file
"""

import array
import fcntl
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

ROUNDS = 120
MANY = 3
# File and number of bytes.
LATE = os.environ.get("HANDBACK_LATE")
# File with the number of bytes that the client has sent and nobody has read, at most so many.
MUCH_FILE = os.environ.get("HANDBACK_MUCH")
MUCH = 1 << 20
# Bytes that can go back where they have no room but that of unacknowledged ones.
FEW = 128 * 1024
# How long a call waits for bytes that are on their way back.
BACK_S = 2
# No other bytes begin like this.
FILLER = b"\xff" * 65536
TAIL = b"".join(struct.pack("!I", number) for number in range(20_000))


def take(sock, count):
    """Exactly `count` bytes, or what comes before the end."""
    got = b""
    while len(got) < count:
        piece = sock.recv(count - len(got))
        if not piece:
            break
        got += piece
    return got


def answer(sock, most=None):
    """Answers requests, until the end of the stream or `most`."""
    done = 0
    while done != most:
        head = take(sock, 4)
        if not head:
            break
        body = take(sock, *struct.unpack("!I", head))
        sock.sendall(head + bytes(byte ^ 0xFF for byte in body))
        done += 1
    return done


def without_library():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def become(command, *socks):
    """An image without the library that has the connections."""
    for sock in socks:
        os.set_inheritable(sock.fileno(), True)
    words = [sys.executable, __file__, command, *(str(sock.fileno()) for sock in socks)]
    os.execve(sys.executable, words, without_library())


def serve_many(listener, at, is_child):
    socks = [listener.accept()[0] for _ in range(MANY)]
    listener.close()
    for _ in range(at):
        for sock in socks:
            answer(sock, 1)
    if is_child:
        has_become, becomes = os.pipe()
        if child := os.fork():
            os.close(becomes)
            assert os.read(has_become, 1) == b""
            for sock in socks:
                sock.close()
            sys.exit(os.waitpid(child, 0)[1])
    become("go-on", *socks)


def is_ready_for_epoll(sock):
    with select.epoll() as own:
        own.register(sock, select.EPOLLIN)
        return own.poll(0)


def is_ready_for_poll(sock):
    asked = select.poll()
    asked.register(sock, select.POLLIN)
    return asked.poll(0)


READY = {
    "child-selects": lambda sock: select.select([sock], [], [], 0)[0],
    "child-polls": is_ready_for_poll,
    "child-epolls": is_ready_for_epoll,
}


def fill(sock):
    """Until the kernel takes no byte any more: no marker either."""
    sock.setblocking(False)
    try:
        while True:
            sock.send(FILLER)
    except BlockingIOError:
        sock.setblocking(True)


def skip_filler(sock):
    while True:
        seen = sock.recv(len(FILLER), socket.MSG_PEEK)
        count = len(seen) - len(seen.lstrip(FILLER[:1]))
        take(sock, count)
        if count < len(seen) or not seen:
            return


def much():
    """What the client has sent."""
    with open(MUCH_FILE, encoding="ascii") as file:
        return random.Random(9).randbytes(MUCH)[: int(file.read())]


def take_much(fd, at=0):
    sock = socket.socket(fileno=fd)
    unread = much()[at:]
    assert take(sock, len(unread)) == unread
    sock.sendall(TAIL)
    answer(sock)
    sock.close()


def is_announced(sock, byte):
    """Whether the next byte is there for calls that do not wait. Without it one of them has waited as long as it may."""
    count = array.array("i", [0])
    begun = time.monotonic()
    fcntl.ioctl(sock, termios.FIONREAD, count)
    try:
        assert sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == byte
        assert count[0] > 0 or time.monotonic() - begun >= BACK_S
        return True
    except BlockingIOError:
        assert time.monotonic() - begun >= BACK_S
        return False


def serve_much(sock, how):
    """No relay could go on with it: another process has it, too."""
    while not os.path.exists(MUCH_FILE):
        time.sleep(0.01)
    if how == "child-much":
        child = os.fork()
        if child == 0:
            take_much(sock.detach())
            os._exit(0)
    if how == "asks-much":
        told = os.pipe()
        child = os.fork()
        if child == 0:
            assert os.read(told[0], 1) == b"!"
            take_much(sock.detach(), 1000)
            os._exit(0)
        assert take(sock, 1000) == much()[:1000]
        os.write(told[1], b"!")
        time.sleep(0.2)
        sock.close()
    if how == "split-much":
        told, sent = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            assert os.read(told[0], 1) == b"!"
            sock.sendall(TAIL)
            os.write(sent[1], b"!")
            os._exit(0)
        os.close(sent[1])
        assert take(sock, 1000) == much()[:1000]
        os.write(told[1], b"!")
        unread = much()[1000:]
        # Its first call returns behind one of these, which hands the stream back: what was announced is there.
        while not select.select([sent[0]], [], [], 0)[0] and is_announced(sock, unread[:1]):
            pass
        assert os.read(sent[0], 1) == b"!"
        assert take(sock, len(unread)) == unread
    if how in ("exec-much", "pass-much"):
        told = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told[1])
            os.read(told[0], 1)
            os._exit(0)
        os.close(told[0])
    if how == "exec-much":
        become("take-much", sock)
    if how == "pass-much":
        ours, theirs = socket.socketpair()
        words = [sys.executable, __file__, "receive", str(theirs.fileno())]
        helper = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=without_library())
        pass_on(ours, sock)
        assert helper.wait() == 0
        os.write(told[1], b"!")
    if how == "split-much":
        assert os.waitpid(child, 0)[1] == 0
        answer(sock)
        sock.close()
    else:
        assert os.waitpid(child, 0)[1] == 0


def pass_on(ours, sock):
    ours.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))])
    sock.close()


def serve(port, how, at):
    listener = socket.create_server(("", port))
    helper = None
    if how in ("many", "many-child"):
        serve_many(listener, at, how == "many-child")
    if how == "pass":
        ours, theirs = socket.socketpair()
        words = [sys.executable, __file__, "receive", str(theirs.fileno())]
        helper = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=without_library())
        theirs.close()
    sock, _ = listener.accept()
    listener.close()
    answer(sock, at)
    if how.endswith("-much"):
        return serve_much(sock, how)
    if LATE:
        select.select([sock], [], [])
    if LATE and how.startswith("child"):
        # What comes to the parent's queue pair behind a fork, the other end sends again in its next call.
        time.sleep(0.5)
        fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
    if how == "child-full":
        fill(sock)
    if how in ("half", "half-child"):
        assert sock.recv(1) == b""
    if how == "half":
        become("tail", sock)
    if how in ("mute", "mute-child"):
        sock.shutdown(socket.SHUT_WR)
    if how == "mute":
        become("take-tail", sock)
    if how == "mute-child":
        child = os.fork()
        if child == 0:
            take_tail(sock.detach())
            os._exit(0)
        sock.close()
        assert os.waitpid(child, 0)[1] == 0
    if how == "split":
        begun = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(begun[0], 1)
            time.sleep(0.5)  # until the parent, which is about to read, sleeps
            sock.sendall(TAIL)
            os._exit(0)
        os.write(begun[1], b"!")
        assert sock.recv(1) == b"" and os.waitpid(child, 0)[1] == 0
    if how == "half-child":
        child = os.fork()
        if child == 0:
            sock.sendall(TAIL[:1000])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        sock.sendall(TAIL[1000:])
        sock.close()
    if how == "exec":
        become("go-on", sock)
    if how == "pass":
        pass_on(ours, sock)
        assert helper.wait() == 0
    if how == "idle-child":
        # It has the connection, and does nothing with it; and one becomes an image that does not get it.
        if os.fork() == 0:
            os.execv("/bin/true", ["true"])
        os.wait()
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        answer(sock)
        sock.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    elif how.startswith("child"):
        told = os.pipe()
        child = os.fork()
        if child == 0:
            if how == "child-exec":
                become("go-on", sock)
            if how in ("child-late", "child-close", "child-full", "child-both"):
                go_on(sock.detach(), is_at_once=how == "child-both")
                os._exit(0)
            if how == "child-mute":
                sock.sendall(b"!")
                sock.shutdown(socket.SHUT_WR)
                take_tail(sock.detach())
                os._exit(0)
            if how == "child-later":
                time.sleep(0.5)
            if how == "child-after":
                os.read(told[0], 1)
            if how == "child-keeps":
                os.read(told[0], 1)
                sock.sendall(TAIL)
            if how in READY:
                assert not READY[how](sock), how
                sock.sendall(b"!")
            answer(sock)
            sock.close()
            os._exit(0)
        if how == "child-after":
            # The parent goes on for a while; then the child asks for it.
            answer(sock, 20)
            os.write(told[1], b"!")
            time.sleep(0.2)
        if how == "child-keeps":
            assert sock.recv(1) == b""
            sock.close()
            os.write(told[1], b"!")
        if how == "child-close":
            time.sleep(0.5)  # the child's call is under way
        if how not in ("child-waits", "child-late", "child-full", "child-both", *READY):
            sock.close()
        assert os.waitpid(child, 0)[1] == 0


def receive(fd):
    ours = socket.socket(fileno=fd)
    _, (found,), _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
    (number,) = array.array("i", found[2])
    take_much(number) if MUCH_FILE else go_on(number)


def late():
    path, count = LATE.split(":")
    return path, random.Random(8).randbytes(int(count))


def go_on(fd, is_at_once=False):
    """With `is_at_once` the first two calls on it are of two threads."""
    sock = socket.socket(fileno=fd)
    if LATE:
        path, unread = late()
        begin = threading.Barrier(2)
        done = []

        def send_tail():
            begin.wait()
            sock.sendall(TAIL)
            done.append(len(TAIL))

        thread = threading.Thread(target=send_tail)
        if is_at_once:
            thread.start()
            begin.wait()
        assert take(sock, len(unread)) == unread
        thread.join() if is_at_once else sock.sendall(TAIL)
        assert done == [len(TAIL)] * is_at_once
        open(path, "x", encoding="ascii").close()
    answer(sock)
    sock.close()


def tail(fd):
    sock = socket.socket(fileno=fd)
    sock.sendall(TAIL)
    sock.close()


def take_tail(fd):
    sock = socket.socket(fileno=fd)
    assert take(sock, len(TAIL) + 1) == TAIL
    try:
        sock.sendall(b"?")
        raise AssertionError("sent behind the end")
    except BrokenPipeError:
        sock.close()


def request(index):
    body = bytes([index & 0xFF]) * 700
    return struct.pack("!I", len(body)) + body


def check(sock, index):
    asked = request(index)
    assert take(sock, len(asked)) == asked[:4] + bytes(byte ^ 0xFF for byte in asked[4:])


def ask_one(sock, index):
    sock.sendall(request(index))
    check(sock, index)


def met(host, port, at):
    """A connection on which so many requests were answered."""
    sock = socket.create_connection((host, port))
    for index in range(at):
        ask_one(sock, index)
    return sock


def end_well(sock):
    """Both ends end their streams, with every byte read."""
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""
    print("every byte")


def ask_many(host, port, at, pause):
    hosts = host.split(",")
    socks = [socket.create_connection((hosts[which % len(hosts)], port)) for which in range(MANY)]
    for index in range(at):
        for sock in socks:
            ask_one(sock, index)
    wait_outside(pause)
    for sock in socks:
        sock.sendall(b"".join(request(index) for index in range(ROUNDS)))
    waiting = socks
    while waiting:
        for sock in select.select(waiting, [], [])[0]:
            for index in range(ROUNDS):
                check(sock, index)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
            waiting.remove(sock)
    print("every byte")


def ask_late(host, port, at, end):
    path, unread = late()
    sock = met(host, port, at)
    sock.sendall(unread)
    if end == "before":
        sock.shutdown(socket.SHUT_WR)
    if end == "while":
        wait_outside(f"{path}.pause")
        sock.shutdown(socket.SHUT_WR)
    while not os.path.exists(path):
        time.sleep(0.01)
    skip_filler(sock)
    assert take(sock, len(TAIL)) == TAIL
    if end == "no":
        for index in range(ROUNDS):
            ask_one(sock, index)
        sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""
    print("every byte")


def ask_much(host, port, at):
    sock = met(host, port, at)
    unread = random.Random(9).randbytes(MUCH)
    sent = 0
    sock.setblocking(False)
    while sent < MUCH:
        try:
            sent += sock.send(unread[sent : sent + 65536])
        except BlockingIOError:
            if sent > FEW + 65536:
                break
            # Between its two roads a stream has no room for a moment.
            select.select([], [sock], [])
    sock.setblocking(True)
    with open(MUCH_FILE + ".new", "x", encoding="ascii") as file:
        file.write(str(sent))
    os.rename(MUCH_FILE + ".new", MUCH_FILE)
    assert take(sock, len(TAIL)) == TAIL
    for index in range(ROUNDS):
        ask_one(sock, index)
    end_well(sock)


def ask_forks(host, port, at):
    sock = met(host, port, at)
    child = os.fork()
    if child == 0:
        for index in range(ROUNDS):
            sock.sendall(request(index))
        sock.shutdown(socket.SHUT_WR)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for index in range(ROUNDS):
        check(sock, index)
    assert sock.recv(1) == b""
    print("every byte")


def ask_held(host, port, at):
    sock = met(host, port, at)
    assert take(sock, 1) == b"!"
    for index in range(ROUNDS):
        ask_one(sock, index)
    end_well(sock)


def wait_outside(pause):
    """Until the file that this makes is gone."""
    open(pause, "x", encoding="ascii").close()
    while os.path.exists(pause):
        time.sleep(0.01)


def ask_half(host, port, at):
    sock = met(host, port, at)
    sock.shutdown(socket.SHUT_WR)
    assert take(sock, len(TAIL) + 1) == TAIL
    print("every byte")


def ask_split(host, port, at, end):
    sock = met(host, port, at)
    if end == "before":
        sock.shutdown(socket.SHUT_WR)
    assert take(sock, len(TAIL)) == TAIL
    if end == "behind":
        sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""
    print("every byte")


def ask_mute(host, port, at):
    sock = met(host, port, at)
    assert len(take(sock, 2)) < 2
    # In pieces, some of which come when it is handed on.
    for begin in range(0, len(TAIL), 8000):
        sock.sendall(TAIL[begin : begin + 8000])
        time.sleep(0.02)
    end_well(sock)


def ask(host, port):
    dice = random.Random(7)
    sock = socket.create_connection((host, port), 60)
    for _ in range(ROUNDS):
        bodies = [dice.randbytes(dice.choice([0, 1, 40, 700, 2000])) for _ in range(dice.randrange(1, 6))]
        sock.sendall(b"".join(struct.pack("!I", len(body)) + body for body in bodies))
        for body in bodies:
            got = take(sock, 4 + len(body))
            assert got == struct.pack("!I", len(body)) + bytes(byte ^ 0xFF for byte in body), len(got)
    end_well(sock)


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "serve":
        serve(int(words[0]), words[1], int(words[2]))
    elif command == "ask":
        ask(words[0], int(words[1]))
    elif command == "ask-half":
        ask_half(words[0], int(words[1]), int(words[2]))
    elif command == "ask-split":
        ask_split(words[0], int(words[1]), int(words[2]), words[3])
    elif command == "ask-mute":
        ask_mute(words[0], int(words[1]), int(words[2]))
    elif command == "ask-forks":
        ask_forks(words[0], int(words[1]), int(words[2]))
    elif command == "ask-held":
        ask_held(words[0], int(words[1]), int(words[2]))
    elif command == "ask-much":
        ask_much(words[0], int(words[1]), int(words[2]))
    elif command == "ask-late":
        ask_late(words[0], int(words[1]), int(words[2]), words[3])
    elif command == "ask-many":
        ask_many(words[0], int(words[1]), int(words[2]), words[3])
    else:
        for word in words:
            commands = {"receive": receive, "go-on": go_on, "tail": tail, "take-tail": take_tail, "take-much": take_much}
            commands[command](int(word))
