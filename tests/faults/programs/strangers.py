"""A process of another user has a doorbell of the victim's, and does with it what it likes.

The *victim* serves connections in one epoll loop: one of the *attacker*, who speaks the meeting by hand, without the
library, and those of *innocents*: of its own user, of the attacker's, and of a third one. What the attacker does may
cost its own connection what it likes. No innocent waits long, loses a byte, or is told an end that has not come.
"""

import array
import functools
import json
import mmap
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import ends
from ends import exactly, main
from forging import FOLLOWED, HEAD, RECEIVE_ARM, VICTIM_USER, become, spawn
from standin import (
    ATTACHED, BELL_AND_PAGE, BELL_BYTES, CONTROL, END_BYTES, ENDS, HALF_BYTES, HALVES, JOIN, MESSAGE, RING, SWITCHES, TAIL,
    TRUSTS, StandIn, hello, is_readable, packet, sealed,
)

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

ATTACKER, THIRD, FOURTH = 54323, 54324, 54325
INNOCENTS = {"own": VICTIM_USER, "third": THIRD, "attacker's": ATTACKER}
ATTACK_S = 1.0
ANSWER = 1000
QUIET = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
SLEEPERS, SUMMARY, BITS, SLOTS = 0, 128, 256, 32768


# ---- the victim ------------------------------------------------------------------------------


class Victim:
    """Sends back what it gets, in one loop, and watches itself."""

    def __init__(self, listener, stop):
        self.listener, self.stop = listener, stop
        self.set = select.epoll()
        for file in (listener.fileno(), stop):
            self.set.register(file, select.EPOLLIN)
        self.socks, self.unsent, self.hostile = {}, {}, set()
        self.foul = self.waits = self.most = 0
        self.child = None

    def answer(self, fd, events):
        sock = self.socks[fd]
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            data = None
            if events & (select.EPOLLHUP | select.EPOLLERR) and fd not in self.hostile:
                self.foul += 1  # told of an end, and there is none
        except OSError:
            data = b""
        if data == b"":
            self.set.unregister(fd)
            self.socks.pop(fd).close()
            return
        if data and fd not in self.unsent and data[:1] == b"q":
            self.hostile.add(fd)
        self.unsent[fd] = (self.unsent.get(fd, b"") + (data or b""))[: 1 << 20]
        try:
            while self.unsent[fd]:
                self.unsent[fd] = self.unsent[fd][sock.send(self.unsent[fd], QUIET):]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent[fd] = b""
        self.set.modify(fd, select.EPOLLIN | (select.EPOLLOUT if self.unsent[fd] else 0))

    def look_on(self):
        """A fork child, which has the same epoll set and connections, sees what that tells and takes nothing."""
        end = time.monotonic() + 2 * ATTACK_S
        foul = 0
        while time.monotonic() < end:
            for fd, events in self.set.poll(0.1):
                if fd in self.socks and events & (select.EPOLLHUP | select.EPOLLERR):
                    try:
                        self.socks[fd].recv(1, QUIET | socket.MSG_PEEK)
                    except BlockingIOError:
                        foul += 1
                    except OSError:
                        pass
        return foul

    def serve(self, looks_on=False):
        begun = None
        while True:
            self.waits += 1
            if looks_on and len(self.socks) > len(INNOCENTS):
                begun = begun or time.monotonic()
                if time.monotonic() > begun + ATTACK_S / 4:
                    looks_on = False
                    self.child = told_by(self.look_on)
            for fd, events in self.set.poll():
                if fd == self.stop:
                    return
                if fd == self.listener.fileno():
                    sock, _ = self.listener.accept()
                    sock.setblocking(False)
                    self.socks[sock.fileno()] = sock
                    self.set.register(sock.fileno(), select.EPOLLIN)
                    self.most = max(self.most, len(os.listdir("/proc/self/fd")) - len(self.socks))
                else:
                    self.answer(fd, events)


def innocent(port, uid, tell, stop):
    """Messages to and fro, with the victim asleep between them, and the longest that one took."""
    become(uid)
    sock = socket.create_connection(("127.0.0.1", port))
    ends.warm_up(sock, True)
    os.write(tell, b"i")
    rng, turns, worst, fine = random.Random(uid), 0, 0.0, True
    while not select.select([stop], [], [], 0)[0]:
        turns += 1
        text = ends.stream(turns, ANSWER)
        began = time.monotonic()
        sock.sendall(text)
        fine = exactly(sock, ANSWER) == text and fine
        worst = max(worst, time.monotonic() - began)
        time.sleep(rng.choice([0, 0.0005, 0.003]))
    sock.close()
    return {"fine": fine, "turns": turns, "worst": round(worst, 3)}


def told_by(body, *args):
    """A child that runs `body`, and the file by which it tells the outcome."""
    hear, tell = os.pipe()

    def child():
        os.close(hear)
        os.write(tell, json.dumps(body(*args)).encode())

    pid = spawn(child, 50)
    os.close(tell)
    return pid, hear


@scenario
def attack(kind):
    listener = ends.listener()
    port = listener.getsockname()[1]
    warm, tell = os.pipe()
    stop, stops = os.pipe()
    last, lasts = os.pipe()

    def victim():
        become(VICTIM_USER)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.close(lasts)
        server = Victim(listener, last)
        server.serve(kind == "shuts_before_child")
        if server.child:
            ends.reap(server.child[0])
            server.foul += json.loads(os.read(server.child[1], 100))
        used = os.times()
        return {
            "foul": server.foul, "waits": server.waits, "most": server.most,
            "cpu": round(used.user + used.system, 2), "hostile": len(server.hostile),
        }

    children = {"victim": told_by(victim)}
    for name, uid in INNOCENTS.items():
        children[name] = told_by(innocent, port, uid, tell, stop)
    for _ in INNOCENTS:
        os.read(warm, 1)
    words = [sys.executable, __file__, "attacker", kind, str(port)]
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, start_new_session=True) as attacker:
        said, _ = attacker.communicate(timeout=50)
    # An innocent that begins behind the attack has what it needs, too.
    children["late"] = told_by(innocent, port, FOURTH, tell, stop)
    os.read(warm, 1)
    ends.settle(0.2)
    os.write(stops, b"sssss")
    os.close(stops)
    results = {}
    for name, (pid, hear) in [(n, c) for n, c in children.items() if n != "victim"] + [("victim", children["victim"])]:
        if name == "victim":
            os.close(lasts)
        results[name] = {"code": ends.reap(pid)} | json.loads(os.read(hear, 4096) or b"{}")
    return {"attacker": json.loads(said or b'{"failed": true}'), "code": attacker.returncode, **results}


# ---- the attacker ----------------------------------------------------------------------------


class Attacker(StandIn):
    """It meets, and gets a doorbell and a page for its user."""

    def __init__(self, port):
        super().__init__(socket.create_connection(("127.0.0.1", port)))
        self.waits, self.rings = socket.socketpair()
        self.own_page = sealed("sdp-bell", BELL_BYTES)
        self.own = mmap.mmap(self.own_page, BELL_BYTES)
        self.door = self.page = None
        self.half = HALVES + (self.side ^ 1) * HALF_BYTES  # what the victim sends

    def meet(self, bell=None):
        """Whether the victim says yes, and what it gave besides its handle."""
        unix = self.until(self.knock)
        file = sealed("sdp-conn", CONTROL + 2 * RING)
        self.segment = mmap.mmap(file, CONTROL + 2 * RING)
        bell = self.rings.fileno() if bell is None else bell
        said = packet(JOIN, RING, hello(self.sock), BELL_AND_PAGE)
        self.send(unix, said, file, self.handle, bell, self.own_page)
        os.close(file)
        assert self.until(lambda: is_readable(unix)), "no answer"
        data, given, _, _ = unix.recvmsg(4096, socket.CMSG_SPACE(64))
        if len(data) != 24 + 196:
            return False
        files = array.array("i", given[0][2])
        assert data[7] == BELL_AND_PAGE and len(files) == 3, (data[7], files)
        self.slot = struct.unpack_from("<I", data, 8)[0]
        self.door = socket.socket(fileno=files[1])
        self.page = mmap.mmap(files[2], BELL_BYTES)
        return bool(self.until(self.is_other_attached))

    def engage(self):
        """Has the victim send on the SDP lane, from where this end takes nothing but notice."""
        self.put(ENDS + self.side * END_BYTES + ATTACHED, 1)
        self.put(self.half + TRUSTS, 2)
        end = time.monotonic() + 5
        while not self.word(self.half + SWITCHES):
            assert time.monotonic() < end, "the victim does not come"
            self.sock.sendall(b"q" * MESSAGE)
            time.sleep(0.001)
            self.take()
        self.put(self.half + FOLLOWED, self.word(self.half + SWITCHES))

    def take(self):
        """What the victim sends goes nowhere."""
        try:
            while self.sock.recv(65536, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            pass
        if self.segment:
            tail = struct.unpack_from("Q", self.segment, self.half + TAIL)[0]
            struct.pack_into("Q", self.segment, self.half + HEAD, tail)

    def ask(self):
        """A message, and for its answer this end sleeps, as it says: the victim rings."""
        struct.pack_into("I", self.own, SLEEPERS, 1)
        self.put(self.half + RECEIVE_ARM, (self.word(self.half + RECEIVE_ARM) & ~3) + 4 | 2)
        self.sock.sendall(b"q" * MESSAGE)

    def ring(self):
        try:
            return self.door.send(b"r", QUIET)
        except OSError as error:
            return -error.errno


def for_a_while(step, seconds=ATTACK_S):
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        step(count)
        count += 1
    return count


def rings(peer):
    """Without end."""
    return for_a_while(lambda _: peer.ring())


def fills(peer):
    """With as much as goes in, and sees to it that it stays full."""
    def step(_):
        try:
            peer.door.send(b"f" * 65536, QUIET)
        except BlockingIOError:
            time.sleep(0.0001)

    return for_a_while(step)


def silent(peer):
    """Never rings, and sets no bit, whatever it sends and however much the victim would like to send."""
    return for_a_while(lambda _: (peer.sock.send(b"q" * MESSAGE, QUIET), time.sleep(0.001)))


def closes(peer):
    """All that it was given."""
    peer.door.close()
    peer.page.close()
    return for_a_while(lambda _: time.sleep(0.05))


def shuts(peer):
    """It ends the doorbell, again and again."""
    def step(_):
        try:
            peer.door.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        struct.pack_into("Q", peer.page, SUMMARY, 1)
        time.sleep(0.001)

    return for_a_while(step)


def shuts_before_child(peer):
    """The same where a fork child waits on the victim's epoll set."""
    return shuts(peer)


def flags(peer):
    """It makes its end blocking, small and anything else that one can set, and rings."""
    os.set_blocking(peer.door.fileno(), True)
    for level, name in ((socket.SOL_SOCKET, socket.SO_SNDBUF), (socket.SOL_SOCKET, socket.SO_RCVBUF)):
        peer.door.setsockopt(level, name, 1)
    peer.door.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return for_a_while(lambda _: (peer.ring(), time.sleep(0.0002)))


def urgent(peer):
    """The same with out-of-band bytes, which the kernel takes out in its own way."""
    return files(peer, socket.MSG_OOB)


def files(peer, kind=0):
    """It sends descriptors by it: the last close of one of these takes as long as it likes."""
    deaf = ends.listener()
    closers = []

    def send_one():
        """By a process that then dies, so that it need not wait itself: the last copy is the doorbell's."""
        lingering = socket.create_connection(deaf.getsockname())
        lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
        lingering.setblocking(False)
        try:
            while lingering.send(b"l" * 65536):
                pass
        except BlockingIOError:
            pass
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [lingering.fileno()]))
            peer.door.sendmsg([b"f"], [rights], kind)
        except OSError:
            pass
        os._exit(0)

    def step(count):
        if count < 20:
            closers.append(os.fork())
            if not closers[-1]:
                send_one()
        struct.pack_into("I", peer.page, 4, 1000 * count)
        peer.ring()
        time.sleep(0.01)

    done = for_a_while(step, 3 * ATTACK_S)
    for pid in closers:
        os.waitpid(pid, 0)
    return done


def hands_on(peer):
    """To processes of other users, which ring and stay behind."""
    for uid in (FOURTH, FOURTH + 1):
        if os.fork() == 0:
            become(uid)
            for_a_while(lambda _: peer.ring())
            time.sleep(3)
            os._exit(0)
    return for_a_while(lambda _: peer.ring())


def rubbish(peer):
    """It writes anything anywhere into the page, and rings."""
    rng = random.Random(3)

    def step(_):
        at = rng.choice([0, 4, SUMMARY + 8 * rng.randrange(8), BITS + 8 * rng.randrange(512)])
        struct.pack_into("I", peer.page, at, rng.choice([0, 1, 1 << 31, rng.getrandbits(32)]))
        peer.ring()

    return for_a_while(step)


def others(peer):
    """It sets hints of all connections there are, without end."""
    ones = b"\xff" * (SLOTS // 8)

    def step(_):
        peer.page[BITS : BITS + len(ones)] = ones
        peer.page[SUMMARY : SUMMARY + 64] = b"\xff" * 64
        peer.ring()

    return for_a_while(step)


def counts(peer):
    """It says that it has rung as often as makes the victim empty its doorbell each time, which is empty, or full."""
    def step(count):
        struct.pack_into("I", peer.page, 4, count * 1000 % (1 << 32))
        if count % 3:
            peer.ring()

    return for_a_while(step)


def killed(peer):
    """In the middle of its ringing."""
    pid = os.fork()
    if pid == 0:
        for_a_while(lambda _: peer.ring())
        os._exit(0)
    time.sleep(ATTACK_S / 2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return for_a_while(lambda _: time.sleep(0.05), ATTACK_S / 2)


def stopped(peer):
    """With its doorbell full of what the victim sent, and what the victim got full, too."""
    pid = os.fork()
    if pid == 0:
        for_a_while(lambda _: (peer.ask(), peer.ring()))
        os._exit(0)
    time.sleep(ATTACK_S / 4)
    os.kill(pid, signal.SIGSTOP)
    count = for_a_while(lambda _: time.sleep(0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return count


def deaf(peer):
    """Its own doorbell is full, and made blocking: the victim rings nevertheless, and does not wait."""
    peer.engage()
    peer.rings.setblocking(False)
    try:
        while peer.rings.send(b"x" * 4096):
            pass
    except BlockingIOError:
        peer.rings.setblocking(True)
    return for_a_while(lambda _: (peer.ask(), time.sleep(0.001), peer.take()))


def hung_up(peer):
    """Nobody has the other end of its own doorbell: the victim's ring would cost a signal."""
    peer.engage()
    peer.waits.close()
    return for_a_while(lambda _: (peer.ask(), time.sleep(0.001), peer.take()))


def answers(peer):
    """No attack: the victim's ring comes."""
    peer.engage()
    heard = 0
    for _ in range(50):
        peer.ask()
        heard += bool(select.select([peer.waits], [], [], 2)[0])
        peer.waits.recv(4096, socket.MSG_DONTWAIT)
        peer.take()
    assert heard == 50, heard
    return heard


ATTACKS = {
    body.__name__: body
    for body in (
        rings, fills, silent, closes, shuts, shuts_before_child, flags, files, urgent, hands_on, rubbish, others, counts, killed, stopped,
        deaf, hung_up, answers,
    )
}


def a_pipe():
    return os.pipe()[1]


def an_eventfd():
    return os.eventfd(0, os.EFD_NONBLOCK)


def a_tcp_socket():
    listener = ends.listener()
    return socket.create_connection(listener.getsockname()).detach()


def a_datagram_socket():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].detach()


def somebody_elses():
    """A connection to a process of another user, who would take what is written there for the victim's word."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        become(FOURTH)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0strangers-{os.getppid()}")
            listener.listen(1)
            theirs.send(b"l")
            kept, _ = listener.accept()
            theirs.recv(1)  # until the attacker ends
            kept.close()
        os._exit(0)
    theirs.close()
    assert ours.recv(1) == b"l", "the other process has no listener"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(f"\0strangers-{os.getpid()}")
    ours.detach()  # stays open as long as this process
    return sock.detach()


FALSE_BELLS = {
    body.__name__: body for body in (a_pipe, an_eventfd, a_tcp_socket, a_datagram_socket, somebody_elses)
}


@scenario
def attacker(kind, port):
    """The process without the library."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if kind == "many":
        return many(int(port))
    other = FALSE_BELLS[kind]() if kind in FALSE_BELLS else None
    become(ATTACKER)
    peer = Attacker(int(port))
    if other is not None:
        return {"met": peer.meet(other)}
    assert peer.meet(), "the victim says no"
    return {"met": True, "count": ATTACKS[kind](peer)}


USERS, PROCESSES = 24, 3


def many(port):
    """Several processes of each of many users meet, ring, and stay for a while."""
    hear, tell = os.pipe()
    children = []
    for number in range(USERS * PROCESSES):
        pid = os.fork()
        if pid == 0:
            become(60000 + number % USERS)
            peer = Attacker(port)
            unix = peer.until(peer.knock)
            file = sealed("sdp-conn", CONTROL + 2 * RING)
            peer.send(unix, packet(JOIN, RING, hello(peer.sock), 0), file, peer.handle)
            assert peer.until(lambda: is_readable(unix))
            data, given, _, _ = unix.recvmsg(4096, socket.CMSG_SPACE(64))
            got = array.array("i", given[0][2])
            os.write(tell, bytes([len(got)]))
            if len(got) == 3:
                peer.door = socket.socket(fileno=got[1])
                for_a_while(lambda _: (peer.ring(), time.sleep(0.001)))
            time.sleep(ATTACK_S)
            os._exit(0)
        children.append(pid)
    os.close(tell)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    got = b""
    while data := os.read(hear, 4096):
        got += data
    return {"met": not any(codes), "belled": got.count(3), "bare": got.count(1)}


# ---- no attack -------------------------------------------------------------------------------

BULK = 12 << 20


def wait_blocking(sock):
    sock.setblocking(True)
    return lambda: None


def wait_poll(sock):
    waiter = select.poll()
    waiter.register(sock, select.POLLOUT)
    return waiter.poll


def wait_select(sock):
    return lambda: select.select([], [sock], [])


def wait_epoll(sock, edge=0):
    waiter = select.epoll()
    waiter.register(sock, select.EPOLLIN | select.EPOLLOUT | edge)
    return waiter.poll


WAITS = {
    "blocking": wait_blocking,
    "poll": wait_poll,
    "select": wait_select,
    "level": wait_epoll,
    "edge": functools.partial(wait_epoll, edge=select.EPOLLET),
}


@scenario
def between(wait, users="two", limit=None):
    """A sender fills the ring, again and again, and waits for room; its reader, another user, stops now and then."""
    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit),) * 2)
    text = ends.stream(5, 1 << 20)

    def reader(sock):
        taken, rng = 0, random.Random(5)
        while data := sock.recv(rng.choice([1000, 65536, 300_000])):
            at = taken % len(text)
            assert data == (text + text)[at : at + len(data)], taken
            taken += len(data)
            if rng.random() < 0.05:
                time.sleep(0.004)
        assert taken == BULK, taken

    hear, tell = os.pipe()

    def child():
        if users == "two":
            become(THIRD)
        sock = socket.create_connection(("127.0.0.1", int(os.read(hear, 10))))
        ends.warm_up(sock, True)
        reader(sock)

    pid = spawn(child, 50)
    if users == "two":
        become(ATTACKER)  # each before it has a socket
    listener = ends.listener()
    os.write(tell, str(listener.getsockname()[1]).encode())
    sock, _ = listener.accept()
    ends.warm_up(sock, False)
    sock.setblocking(False)
    until = WAITS[wait](sock)
    until()  # the library sees how the program waits
    sent, began = 0, time.monotonic()
    while sent < BULK:
        at = sent % len(text)
        try:
            sent += sock.send((text + text)[at : at + min(200_000, BULK - sent)])
        except BlockingIOError:
            until()
    sock.close()
    return {"code": ends.reap(pid), "took": time.monotonic() - began < 20}


@scenario
def renamed():
    """A server changes its user between two connections of the same process, which keeps both."""
    listener = ends.listener()
    port = listener.getsockname()[1]
    users = (0, ATTACKER, FOURTH)

    def client():
        become(THIRD)
        waiter, socks, worst = select.epoll(), [], 0.0
        for _ in users:
            socks.append(socket.create_connection(("127.0.0.1", port)))
            ends.warm_up(socks[-1], True)
            waiter.register(socks[-1], select.EPOLLIN)
            for _ in range(10):
                socks[-1].sendall(b"?" * 1000)
                began = time.monotonic()
                assert waiter.poll(10), "nothing comes"
                worst = max(worst, time.monotonic() - began)
                exactly(socks[-1], 1000)
        assert worst < 1, worst

    pid = spawn(client, 50)
    # With a second thread what a connection has is kept until it is closed.
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    kept = []
    for user in users:
        os.setresuid(0, 0, 0)
        os.setresuid(user, user, 0)
        kept.append(listener.accept()[0])
        ends.warm_up(kept[-1], False)
        for _ in range(10):
            exactly(kept[-1], 1000)
            time.sleep(0.02)  # the other end sleeps
            kept[-1].sendall(b"!" * 1000)
    return {"code": ends.reap(pid)}


@scenario
def one_way():
    """The two ends of a connection are different users', and one of them never sends."""
    text, size, hear, tell = ends.stream(6, 1 << 20), 8 << 20, *os.pipe()

    def child():
        become(THIRD)
        sock = socket.create_connection(("127.0.0.1", int(os.read(hear, 10))))
        for at in range(0, size, 10_000):
            sock.sendall((text + text)[at % len(text) :][: min(10_000, size - at)])
            if at < 1_000_000:
                time.sleep(0.001)  # the ends meet, and the reader sees what is sent

    pid = spawn(child, 50)
    become(ATTACKER)  # each before it has a socket
    listener = ends.listener()
    os.write(tell, str(listener.getsockname()[1]).encode())
    sock, _ = listener.accept()
    taken = 0
    while data := sock.recv(65536):
        at = taken % len(text)
        assert data == (text + text)[at : at + len(data)], taken
        taken += len(data)
    return {"code": ends.reap(pid), "taken": taken == size}


if __name__ == "__main__":
    main(TABLE)
