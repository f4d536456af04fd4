"""Connections that change hands: fork, exec, passed descriptors, with bytes unread in the ring.

Throughout, `peer` is the other end of the connection; it sends a known stream and gets it back from
whoever holds our end at the time.
"""

import array
import functools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib

import ends
from ends import drain, exactly, main, pair, settle

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
FIRST, SECOND = ends.stream(11, 20_000), ends.stream(12, 300_000)


def sender(style):
    """A peer that sends FIRST, and SECOND later, and checks that both come back; then it ends.

    `asleep`: it waits inside the library meanwhile. `busy`: it does not call at all for a while.
    """

    def peer(sock):
        sock.sendall(FIRST)
        if style == "busy":
            time.sleep(0.6)
        back = exactly(sock, len(FIRST))
        if back != FIRST:
            wrong = next((i for i, (a, b) in enumerate(zip(back, FIRST)) if a != b), len(back))
            raise AssertionError(f"first part: {len(back)} bytes, wrong from {wrong}")
        thread = threading.Thread(target=sock.sendall, args=(SECOND,))
        thread.start()
        assert exactly(sock, len(SECOND)) == SECOND, "second part"
        thread.join()
        sock.shutdown(socket.SHUT_WR)
        assert drain(sock, b"") == (0, "EOF", True)

    return peer


def send_back(sock, n=None):
    """Echoes n bytes, or all until the end."""
    while n is None or n > 0:
        data = sock.recv(65536 if n is None else min(n, 65536))
        if not data:
            break
        sock.sendall(data)
        n = None if n is None else n - len(data)


def finish(child):
    """How the peer ended."""
    return {"peer": ends.reap(child)}


@scenario
def used_by_both(seed):
    """After a fork both processes use the connection, taking turns."""
    rng = random.Random(int(seed))

    def peer(sock):
        send_back(sock)

    sock, child = pair(peer)
    to_child, to_parent = socket.socketpair()
    other = os.fork()
    me = to_child if other else to_parent
    (to_parent if other else to_child).close()
    turns = random.Random(int(seed) + 1)
    fine = True
    if not other:
        signal.alarm(30)
    for turn in range(200):
        mine = (turns.random() < 0.5) == (other == 0)
        n = turns.choice([1, 10, 1000, 30000])
        text = ends.stream(turn, n)
        if mine:
            sock.sendall(text)
            fine = exactly(sock, n) == text and fine
            me.sendall(b"t")
        else:
            assert me.recv(1) == b"t"
    if not other:
        os._exit(0 if fine else 1)
    code = ends.reap(other)
    sock.shutdown(socket.SHUT_WR)
    seen = drain(sock, b"")
    return {"fine": fine, "other": code, "end": seen, **finish(child), "rng": rng.random() < 2}


@scenario
def parent_writes_child_reads():
    """One direction each, at the same time: what an old proxy with two processes does."""
    sock, child = pair(sender("asleep"))
    settle()
    hear, tell = socket.socketpair()
    other = os.fork()
    if other == 0:
        signal.alarm(30)
        tell.close()
        while data := sock.recv(65536):
            hear.sendall(data)
        os._exit(0)
    hear.close()
    left = len(FIRST) + len(SECOND)
    while left:
        data = tell.recv(65536)
        if not data:
            break
        sock.sendall(data)
        left -= len(data)
    sock.shutdown(socket.SHUT_WR)
    return {"other": ends.reap(other), "left": left, **finish(child)}


@scenario
def child_goes_on(unread):
    """The parent closes after the fork; the child goes on, with bytes unread or not."""
    sock, child = pair(sender("asleep"))
    if unread == "unread":
        settle()
    else:
        sock.sendall(exactly(sock, len(FIRST)))
    other = os.fork()
    if other == 0:
        signal.alarm(30)
        time.sleep(0.05)
        send_back(sock)
        os._exit(0)
    sock.close()
    return {"other": ends.reap(other), **finish(child)}


@scenario
def parent_goes_on(how):
    """A child that got the connection by fork only closes it, exits or is killed."""
    sock, child = pair(sender("asleep"))
    settle()
    for _ in range(5):
        other = os.fork()
        if other == 0:
            if how == "close":
                sock.close()
                time.sleep(0.02)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "exec":
                os.execv("/bin/true", ["true"])
            if how == "sys.exit":
                os.kill(os.getpid(), 0)
            os._exit(0)
        os.waitpid(other, 0)
    send_back(sock)
    sock.close()
    return finish(child)


@scenario
def executed(style, image, *place):
    """The connection becomes standard input and output of a program."""
    sock, child = pair(sender(style))
    settle()
    if "part" in place:
        sock.sendall(exactly(sock, 1000))
    other = os.fork()
    if other == 0:
        os.dup2(sock.fileno(), 0)
        os.dup2(sock.fileno(), 1)
        argv = [image, "cat"] if image != "python" else [sys.executable, "-c", COPY]
        os.execv(argv[0], argv)
    sock.close()
    return {"other": ends.reap(other), **finish(child)}


COPY = """
import os
while data := os.read(0, 65536):
    while data:
        data = data[os.write(1, data):]
"""


@scenario
def executed_here(style, image):
    """As above, without a fork: the process itself becomes the program."""
    lst = ends.listener()
    peer = os.fork()
    if peer == 0:
        signal.alarm(30)
        sock = socket.create_connection(lst.getsockname())
        lst.close()
        ends.warm_up(sock, True)
        try:
            sender(style)(sock)
            print('{"peer": 0}', flush=True)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
        os._exit(0)
    sock, _ = lst.accept()
    ends.warm_up(sock, False)
    settle()
    saved = os.dup(1)
    os.set_inheritable(saved, True)
    os.dup2(sock.fileno(), 0)
    os.dup2(sock.fileno(), 1)
    # The shell waits for the peer, whose output is what the test reads.
    os.close(sock.detach())
    lst.close()
    os.execv(image, [image, "cat"])


@scenario
def inherited_by_popen(style, image):
    """subprocess with the socket as stdin and stdout: its child is made by vfork."""
    sock, child = pair(sender(style))
    settle()
    other = subprocess.Popen([image, "cat"], stdin=sock, stdout=sock)
    sock.close()
    return {"other": other.wait(), **finish(child)}


@scenario
def passed(style, image):
    """The descriptor travels by SCM_RIGHTS to a process with or without the library."""
    here, there = socket.socketpair()
    if image == "python":
        other = os.fork()
        if other == 0:
            signal.alarm(30)
            here.close()
            _, control, _, _ = there.recvmsg(1, socket.CMSG_SPACE(4))
            number = array.array("i", control[0][2])[0]
            send_back(socket.socket(fileno=number))
            os._exit(0)
    else:
        os.set_inheritable(there.fileno(), True)
        other = os.posix_spawn(image, [image, "passed", str(there.fileno())], os.environ)
    there.close()
    sock, child = pair(sender(style))
    settle()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
    here.sendmsg([b"x"], rights)
    sock.close()
    return {"other": ends.reap(other), **finish(child)}


@scenario
def left_behind(how, way, image, size):
    """Bytes unread when the connection goes to somebody without the library, and nobody can put them back.

    `closed`: the other end is gone. `half`: it has shut down its sending side, so that its socket takes no
    more. `forked`: it goes on in a fork child, which is not the process that is known here.
    """
    text = ends.stream(int(size), int(size))

    def peer(sock):
        if how == "forked" and os.fork():
            sock.close()
            os._exit(0)
        sock.sendall(text)
        if how == "half":
            sock.shutdown(socket.SHUT_WR)
        if how == "closed":
            return
        settle(0.5)  # silent: nobody here is in a call of the library
        if how == "forked":
            sock.shutdown(socket.SHUT_WR)
        assert exactly(sock, 4) == b"done"
        assert sock.recv(1) == b""
        os._exit(0)

    reads, tells = os.pipe()
    here, there = socket.socketpair()
    if way == "passed":
        other = os.fork()
        if other == 0:
            os.dup2(tells, 2)
            os.set_inheritable(there.fileno(), True)
            os.execv(image, [image, "sum", str(there.fileno())])
    sock, child = pair(peer)
    if how != "half":
        settle(0.2)
    gone = ends.reap(child) if how == "closed" else None
    if way == "passed":
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
        here.sendmsg([b"x"], rights)
    else:
        other = os.fork()
        if other == 0:
            settle(0.1)  # until the parent has closed it
            os.dup2(tells, 2)
            os.dup2(sock.fileno(), 0)
            os.execv(image, [image, "sum"])
    sock.close()
    os.close(tells)
    with os.fdopen(reads) as told:
        got = told.read().split(None, 2)
    fine = got[:2] == [str(len(text)), f"{zlib.adler32(text):08x}"]
    return {"fine": fine, "got": got, "other": ends.reap(other), "peer": gone or 0}


@scenario
def passed_and_kept():
    """Sender and receiver of a passed descriptor both use it, in turns."""
    here, there = socket.socketpair()
    other = os.fork()
    if other == 0:
        signal.alarm(30)
        here.close()
        _, control, _, _ = there.recvmsg(1, socket.CMSG_SPACE(4))
        sock = socket.socket(fileno=array.array("i", control[0][2])[0])
        for turn in range(100):
            assert there.recv(1)
            text = ends.stream(turn, 500)
            sock.sendall(text)
            assert exactly(sock, 500) == text
            there.sendall(b"t")
        os._exit(0)
    there.close()
    sock, child = pair(send_back)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
    here.sendmsg([b"x"], rights)
    fine = True
    for turn in range(100):
        here.sendall(b"t")
        assert here.recv(1)
        text = ends.stream(turn + 1000, 5000)
        sock.sendall(text)
        fine = exactly(sock, 5000) == text and fine
    sock.close()
    return {"other": ends.reap(other), "fine": fine, **finish(child)}


@scenario
def passed_with_a_request_unread(how):
    """Who passes a connection on closes it, or ends, when a request for the receiver is there already: no reset."""
    here, there = socket.socketpair()
    hear, tell = os.pipe()
    passer = os.fork()
    if passer == 0:
        signal.alarm(30)

        def peer(sock):
            exactly(sock, 100)
            assert os.read(hear, 1)  # it has been passed on
            sock.sendall(b"request")
            os.write(asked[1], b"a")
            answer = drain(sock, b"answer")
            os._exit(0 if answer == (6, "EOF", True) else print(answer, file=sys.stderr) or 1)

        asked = os.pipe()
        sock, child = pair(peer)
        sock.sendall(b"w" * 100)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
        there.sendmsg([b"x"], rights)
        os.write(tell, b"p")
        assert os.read(asked[0], 1)
        settle()
        if how == "close":
            sock.close()
        there.sendall(b"c")
        if how == "close":
            assert there.recv(1)
        os._exit(ends.reap(child) if how == "close" else 0)
    there.close()
    _, control, _, _ = here.recvmsg(1, socket.CMSG_SPACE(4))
    sock = socket.socket(fileno=array.array("i", control[0][2])[0])
    assert here.recv(1)
    code = None if how == "close" else ends.reap(passer)
    got = exactly(sock, 7)
    lingers = sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    sock.sendall(b"answer")
    sock.close()
    if how == "close":
        here.sendall(b"d")
        code = ends.reap(passer)
    return {"code": code, "fine": got == b"request", "lingers": any(lingers)}


@scenario
def spawned_with_a_request_unread(big):
    """A helper that no hook saw get the connection answers a request that was there when its parent closed."""
    answer = b"answer" * int(big)

    def peer(sock):
        sock.setblocking(False)
        for _ in range(ends.WARM_ROUNDS):
            sock.send(b"ping")
            ends.take_slowly(sock, 4)
        sock.send(b"query")
        sock.setblocking(True)
        got = drain(sock, answer)
        os._exit(0 if got == (len(answer), "EOF", True) else print(got, file=sys.stderr) or 1)

    sock, child = pair(peer, warm=False)
    sock.setblocking(False)
    for _ in range(ends.WARM_ROUNDS):
        ends.take_slowly(sock, 4)
        sock.send(b"pong")
    settle()
    number = sock.fileno()
    body = f"""
import os, select, time
time.sleep(0.1)
os.read({number}, 5)
rest = b"answer" * {big}
while rest:
    select.select([], [{number}], [])
    rest = rest[os.write({number}, rest):]
"""
    helper = subprocess.Popen([sys.executable, "-S", "-c", body], pass_fds=[number])
    sock.close()
    return {"helper": helper.wait(), "peer": ends.reap(child)}


@scenario
def passed_while_a_relative_keeps_it(when):
    """Who got the descriptor and a relative of who passed it on both use the connection, in turns. The
    relative was born before it was passed on, or after."""
    here, there = socket.socketpair()

    def take_turns(sock, orders, letter):
        while orders.recv(1):
            sock.sendall(letter * 100)
            assert sock.recv(1) == b"."
            orders.sendall(b"t")
        os._exit(0)

    def judge(sock):
        while text := exactly(sock, 100):
            assert text in (b"R" * 100, b"S" * 100), text
            sock.sendall(b".")

    stranger = os.fork()
    if stranger == 0:
        signal.alarm(30)
        here.close()
        _, control, _, _ = there.recvmsg(1, socket.CMSG_SPACE(4))
        take_turns(socket.socket(fileno=array.array("i", control[0][2])[0]), there, b"S")
    there.close()
    sock, child = pair(judge, warm=False)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
    if when == "after":
        here.sendmsg([b"x"], rights)
    hear, tell = socket.socketpair()
    relative = os.fork()
    if relative == 0:
        signal.alarm(30)
        here.close()
        tell.close()
        take_turns(sock, hear, b"R")
    hear.close()
    if when == "before":
        here.sendmsg([b"x"], rights)
    sock.close()
    turns = 0
    for turn in range(600):
        orders = here if turn // 100 % 2 else tell
        orders.settimeout(5)
        orders.sendall(b"t")
        turns += orders.recv(1) == b"t"
    for orders in here, tell:
        orders.shutdown(socket.SHUT_RDWR)  # the peer has one of them open too
    return {"turns": turns, "codes": [ends.reap(pid) for pid in (stranger, relative, child)]}


@scenario
def renumbered():
    """The number that the connection was made with names another connection by now, whose bytes are
    its own: poll looks behind a lane switch of the first without touching the second."""

    def quiet(sock):
        sock.sendall(b"first")
        time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)  # leaves the lane without a word
        time.sleep(0.6)
        sock.sendall(b"more")
        assert exactly(sock, 2) == b"ok"

    def talker(sock):
        time.sleep(0.2)
        sock.sendall(b"0123456789")
        assert exactly(sock, 2) == b"ok"

    # The second is a young connection: its bytes lie in its kernel queue.
    second, second_child = pair(talker, warm=False)
    first, first_child = pair(quiet)
    moved = socket.socket(fileno=os.dup(first.fileno()))
    number = first.fileno()
    first.close()
    os.dup2(second.fileno(), number)
    second.close()
    second = socket.socket(fileno=number)
    got = [exactly(moved, 5).decode()]
    time.sleep(0.3)
    ready = [ends.readiness(moved), ends.readiness(second)]
    got += [exactly(second, 10).decode(), exactly(moved, 4).decode()]
    for sock in (second, moved):
        sock.sendall(b"ok")
    return {"got": got, "ready": ready, "codes": [ends.reap(first_child), ends.reap(second_child)]}


@scenario
def leaked_into_helpers():
    """Helpers that are started while connections are in use change nothing, also where they get them because nobody
    thought of it: the number never had FD_CLOEXEC."""
    sock, child = pair(sender("asleep"))
    with sock:
        sock = socket.socket(fileno=os.dup2(sock.fileno(), 50))
    assert sock.get_inheritable()
    settle()
    for _ in range(3):
        subprocess.run(["true"], check=True, close_fds=False)
        subprocess.run(["true"], check=True, close_fds=True)
        os.system("true")
    send_back(sock)
    sock.close()
    return finish(child)


if __name__ == "__main__":
    main(TABLE)
