"""Ends that are killed, stopped, or exit: what does the other end see?"""

import functools
import os
import random
import select
import signal
import socket
import sys
import threading
import time

import ends
from ends import drain, main, pair, readiness, settle, writes_until_error

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
UNREAD = 3000
# More than the kernel takes of a connection.
CUT_OFF = 32 << 20
QUERY = b"query"


def after_the_end(sock, expected):
    """What the survivor sees of a peer that is gone, in a fixed order of calls."""
    settle()
    seen = {"poll": readiness(sock)}
    seen["read"] = drain(sock, expected)
    seen["again"] = drain(sock, b"")
    seen["write"] = writes_until_error(sock)
    seen["after"] = drain(sock, b"")
    seen["error option"] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return seen


def gone(how, ours, theirs, calls="recv"):
    """The peer goes (`kill`, `exit`, `close`) with bytes of ours and of its own unread, or not."""
    said = ends.stream(1, UNREAD)

    def peer(sock):
        if theirs:
            sock.sendall(said)
        sock.recv(1)  # a round trip, so that the survivor knows where the peer is
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "close":
            sock.close()
            time.sleep(1)
        os._exit(0)

    sock, child = pair(peer)
    sock.sendall(b"g" + (b"u" * UNREAD if ours else b""))
    os.waitpid(child, 0) if how != "close" else time.sleep(0.2)
    if calls == "write":
        settle()
        seen = {"write": writes_until_error(sock), "read": drain(sock, said)}
    else:
        seen = after_the_end(sock, said)
    if how == "kill":
        # A killed process cannot eat its wake-up bytes, so its kernel may end the carrier with a reset
        # where TCP had sent FIN. Reads and writes are put right; poll shows one bit more.
        seen.pop("poll", None)
    return seen


@scenario
def nothing_unread(how, calls):
    return gone(how, False, False, calls)


@scenario
def our_bytes_unread(how, calls):
    return gone(how, True, False, calls)


@scenario
def its_bytes_unread(how, calls):
    return gone(how, False, True, calls)


@scenario
def both_unread(how, calls):
    return gone(how, True, True, calls)


@scenario
def closed_behind_a_switch(most):
    """The peer closes with one message unread, after each number of round trips: once it is the first behind a switch."""
    told = set()
    for trips in range(1, int(most)):
        hear, tell = os.pipe()

        def peer(sock, trips=trips, hear=hear):
            for _ in range(trips):
                sock.sendall(sock.recv(20, socket.MSG_WAITALL))
            os.read(hear, 1)
            sock.close()

        sock, child = pair(peer, warm=False)
        for _ in range(trips):
            sock.sendall(b"t" * 20)
            sock.recv(20, socket.MSG_WAITALL)
        sock.sendall(b"unread")
        os.write(tell, b"c")
        try:
            told.add(f"{len(sock.recv(1))} bytes")
        except ConnectionResetError:
            told.add("reset")
        os.waitpid(child, 0)
        sock.close()
        os.close(hear)
        os.close(tell)
    return {"told": sorted(told)}


@scenario
def while_asleep(how, wait):
    """The survivor sleeps in a call when the peer goes."""

    def peer(sock):
        time.sleep(0.3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    sock, _ = pair(peer)
    began = time.monotonic()
    if wait == "recv":
        seen = ends.outcome(lambda: len(sock.recv(10)))
    elif wait == "send":
        sock.settimeout(None)
        seen = ends.outcome(lambda: [sock.sendall(b"x" * 65536) for _ in range(1000)] and 0)
        # Which of the two words comes first is a matter of time over TCP, too.
        seen = seen in ("ECONNRESET", "EPIPE")
    elif wait == "poll":
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        seen = [bits for _, bits in poll.poll(8000)]
    else:
        epoll = select.epoll()
        epoll.register(sock, select.EPOLLIN | (select.EPOLLET if wait == "epoll-et" else 0))
        seen = [bits for _, bits in epoll.poll(8)]
    return {"seen": seen, "soon": time.monotonic() - began < 5}


@scenario
def behind_unread_bytes(how):
    """The peer goes when a set has reported its bytes and nobody has read them: what each wait says then, and after a read."""
    seen = {}
    for name, events in (
        ("level", select.EPOLLIN),
        ("level rdhup", select.EPOLLIN | select.EPOLLRDHUP),
        ("edge", select.EPOLLIN | select.EPOLLET),
        ("edge rdhup", select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET),
    ):
        hear, tell = os.pipe()

        def peer(sock, hear=hear, tell=tell):
            os.close(tell)
            sock.sendall(b"x" * 100)
            os.read(hear, 1)
            if how == "shutdown":
                sock.shutdown(socket.SHUT_WR)
                os.read(hear, 1)
            os._exit(0)

        sock, child = pair(peer)
        os.close(hear)
        held = select.epoll()
        held.register(sock, events)

        def wait(limit_s, held=held):
            # A killed peer's wake bytes may make its FIN a reset, which has two bits more.
            return [bits & (select.EPOLLIN | select.EPOLLRDHUP) for _, bits in held.poll(limit_s)]

        def wait_for_end(name=name):
            """A level-triggered set asks the kernel for the end of a peer that says nothing in its ring now and then only."""
            told = wait(0.5)
            is_late = how != "shutdown" and name == "level rdhup" and told == [select.EPOLLIN]
            return wait(0.5) if is_late else told

        told = [wait(8)]
        if how == "kill":
            ends.kill(child)
        else:
            os.write(tell, b"x")
        until = time.monotonic() + 8
        while "RDHUP" not in ends.readiness(sock) and time.monotonic() < until:
            time.sleep(0.001)
        # Without RDHUP the end may be told once more: the ring says it, and the kernel says it later.
        told += [wait_for_end(), len(sock.recv(1000)), wait(0) if name != "edge" else None, len(sock.recv(1000))]
        os.close(tell)
        if how != "kill":
            ends.reap(child)
        seen[name] = told
    return seen


def echo(sock):
    """Sends back what it gets until the end."""
    try:
        while data := sock.recv(65536):
            sock.sendall(data)
    except OSError:
        pass


@scenario
def killed_under_load(seed):
    """Traffic both ways; the peer is killed at a random moment. Not compared call by call: what
    must hold over TCP, too, is checked here."""
    rng = random.Random(int(seed))
    total = 64 << 20
    said = random.Random(7).randbytes(1 << 20) * 64

    def peer(sock):
        thread = threading.Thread(target=drain, args=(sock, b""), daemon=True)
        if rng.random() < 0.7:
            thread.start()
        view, at = memoryview(said), 0
        step = random.Random(int(seed))
        while at < total:
            n = step.choice([100, 5000, 16384, 70000])
            at += sock.send(view[at : at + n])
        time.sleep(60)

    reads_slowly = rng.random() < 0.3
    writes = rng.random() < 0.7
    sock, child = pair(peer)
    killer = threading.Timer(rng.random() * 0.06, os.kill, (child, signal.SIGKILL))
    killer.start()
    errors = []

    def writer():
        try:
            while True:
                sock.send(b"w" * rng.choice([10, 1000, 30000]))
        except OSError as error:
            errors.append(ends.name(error))

    thread = threading.Thread(target=writer)
    if writes:
        thread.start()
    if reads_slowly:
        time.sleep(0.1)
    sock.settimeout(8)
    got, end = 0, None
    try:
        while data := sock.recv(rng.choice([1, 100, 65536, 200000])):
            if said[got : got + len(data)] != data:
                return {"wrong": f"byte after {got}"}
            got += len(data)
        end = "EOF"
    except OSError as error:
        end = ends.name(error)
    os.waitpid(child, 0)
    if writes:
        thread.join(8)
        if thread.is_alive():
            return {"wrong": "the writer hangs"}
    late = writes_until_error(sock)
    fine = end in ("EOF", "ECONNRESET", "EPIPE") and late[1] and late[0] in ("EPIPE", "ECONNRESET")
    if writes:
        fine = fine and errors[0] in ("EPIPE", "ECONNRESET")
    return {"fine": fine} if fine else {"wrong": [end, errors, late, got]}


@scenario
def stopped_under_load(seed):
    """The peer is stopped and continued at random moments; every byte comes back."""
    rng = random.Random(int(seed))
    total = 6 << 20
    said = random.Random(9).randbytes(total)
    sock, child = pair(echo)
    finished = threading.Event()

    def stopper():
        while not finished.wait(rng.random() * 0.02):
            os.kill(child, signal.SIGSTOP)
            time.sleep(rng.random() * 0.05)
            os.kill(child, signal.SIGCONT)

    def writer():
        view, at = memoryview(said), 0
        while at < total:
            n = rng.choice([10, 1000, 16384, 100000])
            at += sock.send(view[at : at + n])
        sock.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=stopper), threading.Thread(target=writer)]
    for thread in threads:
        thread.start()
    seen = drain(sock, said, limit_s=20)
    finished.set()
    for thread in threads:
        thread.join(5)
    return {"seen": seen, "child": ends.reap(child)}


@scenario
def stopped_peer_is_left_alone():
    """With the peer stopped, calls that would block over TCP block, the others return, and closing
    does not wait."""
    sock, child = pair(echo)
    os.kill(child, signal.SIGSTOP)
    sock.settimeout(0.3)
    seen = [ends.outcome(lambda: len(sock.recv(10)))]
    sock.setblocking(False)
    seen.append(ends.outcome(sock.recv, 10))
    seen.append(ends.outcome(sock.send, b"hello"))
    sock.setblocking(True)
    sock.shutdown(socket.SHUT_WR)
    os.kill(child, signal.SIGCONT)
    seen.append(drain(sock, b"hello"))
    return {"seen": seen, "child": ends.reap(child)}


@scenario
def dead_with_a_full_ring(registered, trigger, wait):
    """A sender was told EAGAIN by a full ring, and its reader dies without having freed any room: the set tells
    of it, whether the program sleeps in it or asks again and again without waiting."""

    def peer(_):
        os.kill(os.getpid(), signal.SIGSTOP)

    sock, child = pair(peer)
    os.waitpid(child, os.WUNTRACED)
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    assert poll.poll(0), "full"
    epoll = select.epoll()
    mask = select.EPOLLOUT | (select.EPOLLET if trigger == "edge" else 0)
    if registered == "before":
        epoll.register(sock, mask)
        assert epoll.poll(0), "full"
    full = ends.fill(sock)[1]
    if registered == "after":
        epoll.register(sock, mask)
    epoll.poll(0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    word, until = "EAGAIN", time.monotonic() + 30
    while word == "EAGAIN" and time.monotonic() < until:
        if epoll.poll(0 if wait == "busy" else 30):
            word = ends.fill(sock)[1]
    return {"full": full, "gone": word in ("EPIPE", "ECONNRESET") or word}


@scenario
def reset_during_a_send(peer, much):
    """The peer resets in the middle of one long send: that call has a short count, the next one the error,
    without a signal, and the one after that EPIPE with one."""
    wanted = int(much)
    rest = f"""
import socket, struct, sys, time
sock, n = socket.socket(fileno=int(sys.argv[1])), 0
while n < {wanted}:
    n += len(sock.recv(65536))
time.sleep(0.1)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
sock.close()
"""

    def reader(sock):
        argv = [sys.executable, "-c", rest, str(sock.fileno())]
        if peer == "unaware":
            os.set_inheritable(sock.fileno(), True)
            os.execve(sys.executable, argv, {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
        sys.argv = argv[2:]
        exec(rest, {})

    signals = []
    signal.signal(signal.SIGPIPE, lambda *_: signals.append(len(seen)))
    sock, child = pair(reader, warm=peer == "warm")
    total, seen = 128 << 20, []
    sent = sock.send(bytes(total))
    seen += [ends.outcome(sock.send, b"more") for _ in range(2)]
    return {"short": wanted <= sent < total, "seen": seen, "signals": len(signals), "code": ends.reap(child)}


@scenario
def exit_with_bells():
    """A peer that ends with wake-ups unread, but no bytes, ends with FIN, not with a reset."""

    def peer(sock):
        assert sock.recv(1) == b"1"
        # The survivor rings while this end does not look.
        time.sleep(0.2)
        got = ends.exactly(sock, 100 * 10)
        sock.sendall(b"z" * len(got))
        os._exit(0)

    seen = []
    for _ in range(5):
        sock, child = pair(peer)
        sock.sendall(b"1")
        for _ in range(100):
            sock.sendall(b"0123456789")
        ends.reap(child)
        seen.append([readiness(sock), drain(sock, b"z" * 1000), drain(sock, b"")])
        sock.close()
    return {"seen": seen}


@scenario
def closed_while_another_sleeps(call, related):
    """A thread sleeps in recv or poll while another closes the descriptor; then the number is used
    again. A sleeper in recv keeps the socket and gets its bytes, and not another socket's."""

    def late(sock):
        time.sleep(0.6)
        try:
            sock.sendall(b"late")
        except OSError:
            pass

    sock, child = pair(late, related=related == "related")
    results = []

    def sleeper():
        if call == "recv":
            results.append(ends.outcome(lambda: os.read(number, 10).decode()))
        else:
            poll = select.poll()
            poll.register(number, select.POLLIN)
            results.append(len(poll.poll(1500)) >= 0)

    number = sock.fileno()
    thread = threading.Thread(target=sleeper)
    thread.start()
    time.sleep(0.2)
    os.close(sock.detach())
    # The number again, now another connection.
    other, other_child = pair(echo)
    other.sendall(b"other")
    back = ends.exactly(other, 5).decode()
    other.close()
    codes = [ends.reap(child), ends.reap(other_child)]
    thread.join(4)
    return {"hangs": thread.is_alive(), "back": back, "codes": codes, "slept": results}


@scenario
def spaced_writes(how):
    """Writes with pauses to a peer that is gone, everything read: the second one fails."""

    def peer(sock):
        sock.recv(1)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "close":
            sock.close()
            time.sleep(1)
        os._exit(0)

    sock, child = pair(peer)
    sock.sendall(b"g")
    os.waitpid(child, 0) if how != "close" else time.sleep(0.2)
    seen = []
    for _ in range(4):
        settle()
        seen.append(ends.outcome(sock.send, b"zz"))
    return {"writes": seen, "read": drain(sock, b"")}


@scenario
def cut_off(how):
    """The peer is killed with bytes unread, which cuts off what it had sent and its kernel had to keep back. A bell of
    ours is what the kernel tells of it (`bell`, and `relative`: rung by a fork child of ours), or a write that takes the reset
    for one that bells caused (`judged`)."""
    said = ends.stream(3, CUT_OFF)
    (hear, tell), (hear_back, tell_back) = os.pipe(), os.pipe()

    def peer(sock):
        # Its reads are not waited for yet, so that ours stay on the kernel lane.
        sock.setblocking(False)
        for _ in range(ends.WARM_ROUNDS):
            ends.take_slowly(sock, 4)
            os.write(tell_back, b"r")
        at = 0
        try:
            while at < CUT_OFF:
                at += sock.send(memoryview(said)[at:])
        except BlockingIOError:
            pass
        os.write(tell_back, at.to_bytes(8, "little"))
        os.read(hear, 1)
        sock.setblocking(True)
        sock.recv(1)
        if how == "judged":
            os.write(tell_back, b"t")
            os.read(hear, 1)
            # All of it, but for the bell, for which such a call does not look.
            ends.exactly(sock, 2 * len(QUERY) - 1)
        os.kill(os.getpid(), signal.SIGKILL)

    sock, child = pair(peer, warm=False)
    for _ in range(ends.WARM_ROUNDS):
        sock.sendall(b"ping")
        os.read(hear_back, 1)
    taken = int.from_bytes(os.read(hear_back, 8), "little")  # by the peer's kernel
    sock.sendall(QUERY)
    settle()
    os.write(tell, b"q")
    if how == "judged":
        os.read(hear_back, 1)
        sock.sendall(QUERY)
        os.write(tell, b"q")
    os.waitpid(child, 0)
    settle()
    if how == "judged":
        wrote = ends.outcome(sock.send, b"!", socket.MSG_OOB)
    elif how == "relative":
        writer = os.fork()
        if writer == 0:
            os._exit(0 if writes_until_error(sock)[0] == "EPIPE" else 1)
        wrote = "EPIPE" if ends.reap(writer) == 0 else "something else"
    else:
        wrote, _ = writes_until_error(sock)
    got, end, is_right = drain(sock, said)
    return {"wrote": wrote, "cut": got < taken, "read": end, "right": is_right, "again": drain(sock, b"")[1]}


if __name__ == "__main__":
    main(TABLE)
