"""One process of the chaos suite: it obeys orders from standard input, a JSON object per line.

It holds ends of connections under load, by threads or by an event loop, checks every byte that it gets
against the stream that the round's seed stands for, and says how each end ended. It may be killed,
stopped, starved or replaced at any moment; how far it had come is in a shared page that outlives it.
"""

import collections
import ctypes
import errno
import faulthandler
import json
import mmap
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

PERIOD = (1 << 20) + 7
MOST = 1 << 18
TEXT = random.Random(7).randbytes(PERIOD)
TEXT += TEXT[:MOST]
SIZES = [1, 40, 100, 1500, 5000, 16384, 70_000, 200_000]
READS = [1, 100, 4096, 65_536, 200_000]
# Calls on one end before an event loop looks at the next one.
TURN = 4
STACK_BYTES = 512 << 10
EXIT_STARVED = 77
# Last calls of an end that are told where a round hangs.
REMEMBERED = 24
# Writes to a peer that has gone until the kernel says so, and the pause between them.
LATE_WRITES, LATE_PAUSE_S = 200, 0.01


def word(error):
    """An OSError's name."""
    return errno.errorcode.get(error.errno, repr(error))


class Stream:
    """One direction of one connection: the bytes it stands for, and how far it has come."""

    def __init__(self, seed, number, direction, page, cell):
        self.start = random.Random(f"{seed}/{number}/{direction}").randrange(PERIOD)
        self.done = 0
        self.cells, self.cell = memoryview(page).cast("Q"), cell

    def text(self, n):
        """The next n bytes."""
        at = (self.start + self.done) % PERIOD
        return TEXT[at : at + n]

    def describe(self, data):
        """How `data` differs from what should have come."""
        meant = self.text(len(data))
        at = next(i for i, (one, other) in enumerate(zip(data, meant)) if one != other)
        found = TEXT.find(data[at : at + 32])
        place = (found - self.start - self.done - at) % PERIOD if found >= 0 else None
        told = f"{data[at : at + 16].hex()} for {meant[at : at + 16].hex()}"
        return f"byte {at} of {len(data)} after {self.done}: {told}; displaced by {place} of {PERIOD}"

    def advance(self, n):
        """n more bytes are done; everybody can see it."""
        self.done += n
        # In one store: `struct.pack_into` writes zeros first, and this process may end in between.
        self.cells[self.cell] = self.done


class End:
    """One end of a connection in a round."""

    def __init__(self, sock, order, number, page):
        self.sock, self.order, self.number = sock, order, number
        mine, other = ("up", "down") if order["role"] == "connect" else ("down", "up")
        self.out = Stream(order["seed"], number, mine, page, 2 * number)
        self.inward = Stream(order["seed"], number, other, page, 2 * number + 1)
        self.rng = random.Random(f"{order['seed']}/{number}/{mine}/calls")
        self.read = self.wrote = self.late = self.wrong = None
        self.calls, self.last = 0, collections.deque(maxlen=REMEMBERED)
        if not order["sends"]:
            self.wrote = "-"

    def note(self, *call):
        """A call, or an answer of a poll, for whoever asks why a round hangs."""
        self.calls += 1
        self.last.append(call)

    def receive(self, n=None):
        """One call; True if it may be repeated at once."""
        n = n or self.rng.choice(READS)
        try:
            data = self.sock.recv(n)
        except BlockingIOError:
            self.note("recv", n, "EAGAIN")
            return False
        except OSError as error:
            self.read = word(error)
            self.note("recv", n, self.read)
            return False
        self.note("recv", n, len(data))
        if not data:
            self.read = "EOF"
            return False
        if data != self.inward.text(len(data)):
            self.wrong = self.wrong or self.inward.describe(data)
        self.inward.advance(len(data))
        return True

    def send(self, n=None):
        """One call; True if it may be repeated at once."""
        n = n or self.rng.choice(SIZES)
        try:
            sent = self.sock.send(self.out.text(n))
        except BlockingIOError:
            self.note("send", n, "EAGAIN")
            return False
        except OSError as error:
            self.wrote = word(error)
            self.note("send", n, self.wrote)
            return False
        self.note("send", n, sent)
        self.out.advance(sent)
        return True

    def stop_sending(self):
        """Nothing more will be sent."""
        self.wrote = "done"
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.wrote = word(error)

    def close(self, is_dead):
        """The end of the end; of a peer that has gone, a writer is told."""
        self.sock.setblocking(False)
        if is_dead and self.wrote in ("-", "done"):
            # What a writer learns after its own FIN is EPIPE in any case.
            for _ in range(LATE_WRITES):
                try:
                    self.sock.send(b"late")
                except BlockingIOError:
                    pass
                except OSError as error:
                    self.late = word(error)
                    break
                time.sleep(LATE_PAUSE_S)
            else:
                self.late = "none"
        self.sock.close()

    def describe(self):
        """What it is about at this moment, and its last calls."""
        return {**self.result(), "fd": self.sock.fileno(), "calls": self.calls, "last": list(self.last)}

    def result(self):
        """For the driver."""
        return {
            "number": self.number,
            "sent": self.out.done,
            "got": self.inward.done,
            "read": self.read,
            "wrote": self.wrote,
            "late": self.late,
            "wrong": self.wrong,
        }


class Round:
    """The connections of one order, under load until they end or are told to."""

    def __init__(self, peer, order):
        self.peer, self.order = peer, order
        self.ends, self.failed = [], None
        self.is_finishing = self.is_leaving = self.is_alone = False
        self.wake, self.waker = os.pipe()

    def run(self):
        """Connects, works, and tells how it went."""
        try:
            self.meet()
            style = self.order["style"]
            if style in ("threads", "ping"):
                self.by_threads(self.ping if style == "ping" else None)
            else:
                self.by_events(style)
            for end in self.ends:
                end.close(self.order.get("dies"))
        except (MemoryError, RuntimeError):
            os._exit(EXIT_STARVED)
        except Exception as error:  # pylint: disable=broad-except
            self.failed = f"{type(error).__name__}: {error}"
        os.close(self.wake)
        os.close(self.waker)
        self.peer.rounds.remove(self)
        self.peer.say(ended=[end.result() for end in self.ends], failed=self.failed)

    def tell(self, **change):
        """Changes what the round is about, and wakes its event loop."""
        self.__dict__.update(change)
        try:
            os.write(self.waker, b"w")
        except OSError:
            pass

    def meet(self):
        """Makes the connections; fewer if the other side has gone."""
        for number in range(self.order["count"]):
            number += self.order.get("first", 0)
            try:
                if self.order["role"] == "connect":
                    sock = socket.create_connection(("127.0.0.1", self.order["port"]))
                else:
                    sock = self.accepted()
            except OSError as error:
                self.failed = word(error)
                return
            if sock is None:
                return
            if self.order.get("nodelay"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.ends.append(End(sock, self.order, number, self.peer.page))

    def accepted(self):
        """The next connection; nothing if no more will come."""
        poll = select.poll()
        poll.register(self.peer.listener, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            try:
                sock, _ = self.peer.listener.accept()
                sock.setblocking(True)
                return sock
            except BlockingIOError:
                if self.is_alone:
                    return None
            poll.poll()
            if self.is_alone:
                select.select([self.wake], [], [], 0)

    def by_threads(self, ping):
        """A thread for each direction of each end, in calls that block."""
        bodies = []
        for end in self.ends:
            if ping:
                bodies.append((ping, end))
            else:
                bodies.append((self.reader, end))
                if end.wrote is None:
                    bodies.append((self.writer, end))
        threads = [threading.Thread(target=body, args=(end,), daemon=True) for body, end in bodies]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if self.is_leaving:
                self.leave()
                break
            for thread in threads:
                thread.join(0.01)
        for thread in threads:
            thread.join()

    def leave(self):
        """Ends all connections in the middle; threads that sleep in them are woken by that."""
        for end in self.ends:
            try:
                if self.order.get("linger"):
                    end.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def reader(self, end):
        """Reads to the end."""
        rng = random.Random(f"{self.order['seed']}/{end.number}/naps")
        while end.read is None:
            end.receive()
            if self.order["lazy"] and not self.is_finishing and rng.random() < 0.2:
                time.sleep(rng.random() * 0.004)

    def writer(self, end):
        """Writes until it is told to stop, or cannot."""
        rng = random.Random(f"{self.order['seed']}/{end.number}/pauses")
        while end.wrote is None:
            if self.is_finishing:
                end.stop_sending()
                return
            end.send()
            if self.order["gentle"] and rng.random() < 0.1:
                time.sleep(rng.random() * 0.003)

    def ping(self, end):
        """Requests and answers of the same length, one at a time."""
        rng = random.Random(f"{self.order['seed']}/{end.number}/trips")
        asks = self.order["role"] == "connect"
        while end.read is None:
            n = rng.choice([1, 64, 1500, 20_000])
            if asks and self.is_finishing:
                end.stop_sending()
                end.receive()
                return
            for is_send in (asks, not asks):
                stream = end.out if is_send else end.inward
                goal = stream.done + n
                while stream.done < goal:
                    (end.send if is_send else end.receive)(goal - stream.done)
                    if is_send and end.wrote not in (None, "-"):
                        # The reader's word is still to come.
                        while end.read is None:
                            end.receive()
                        return
                    if end.read is not None:
                        break
                if end.read is not None:
                    break
        if end.wrote is None and not self.order.get("dies"):
            end.stop_sending()
        while end.wrote is None:
            end.send(1)
            time.sleep(0.002)

    def by_events(self, style):
        """One thread for all ends, which never block; `style`: poll, level or edge."""
        poll = select.poll() if style == "poll" else select.epoll()
        edge = select.EPOLLET if style == "edge" else 0
        numbers, masks, can = {}, {}, {}
        poll.register(self.wake, select.POLLIN)
        for end in self.ends:
            end.sock.setblocking(False)
            numbers[end.sock.fileno()] = end
            masks[end] = select.POLLIN | (select.POLLOUT if end.wrote is None else 0)
            poll.register(end.sock, masks[end] | edge)
            can[end] = masks[end]
        while any(can[end] is not None for end in self.ends):
            ready = any(can[end] for end in self.ends) if edge else False
            events = poll.poll(0) if ready else poll.poll()
            fresh = set()
            for number, bits in events:
                if number == self.wake:
                    os.read(self.wake, 100)
                    for end in self.ends:
                        if can[end] is not None:
                            can[end] |= select.POLLOUT
                            fresh.add(end)
                    continue
                end = numbers[number]
                end.note("event", hex(bits))
                if bits & (select.POLLHUP | select.POLLERR):
                    bits |= select.POLLIN | select.POLLOUT
                if can[end] is not None:
                    can[end] = bits if not edge else can[end] | bits
                    fresh.add(end)
            if self.is_leaving:
                self.leave()
                return
            for end in self.ends:
                if can[end] is None or not (edge or end in fresh):
                    continue
                can[end] = self.turn(end, can[end])
                if can[end] is None:
                    poll.unregister(end.sock)
                    continue
                wanted = (0 if end.read else select.POLLIN) | (select.POLLOUT if end.wrote is None else 0)
                if wanted != masks[end]:
                    masks[end] = wanted
                    poll.modify(end.sock, wanted | edge)
        if style != "poll":
            poll.close()

    def turn(self, end, can):
        """A few calls on one end; what it can still do without waiting, None if all is done."""
        if can & select.POLLIN and end.read is None:
            if not all(end.receive() for _ in range(TURN)):
                can &= ~select.POLLIN
        if end.wrote is None and self.is_finishing:
            end.stop_sending()
        if can & select.POLLOUT and end.wrote is None:
            if not all(end.send() for _ in range(TURN)):
                can &= ~select.POLLOUT
        if end.read is not None:
            can &= ~select.POLLIN
        if end.wrote is not None:
            can &= ~select.POLLOUT
        return None if end.read is not None and end.wrote is not None else can


class Peer:
    """The process: its listener, its rounds, what it was starved of."""

    def __init__(self, page):
        self.page = page
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.listener.setblocking(False)
        self.rounds, self.held, self.limit = [], [], None
        self.lock = threading.Lock()

    def say(self, **reply):
        """One line for the driver."""
        with self.lock:
            os.write(1, json.dumps(reply).encode() + b"\n")

    def begin(self, order):
        """Enters a round."""
        entered = Round(self, order)
        self.rounds.append(entered)
        threading.Thread(target=entered.run, daemon=True).start()

    def change(self, order):
        """Tells the rounds something."""
        for entered in list(self.rounds):
            entered.tell(**order["change"])

    def describe(self, _):
        """What all ends are about; asked of a process that has been silent for too long."""
        self.say(rounds=[[end.describe() for end in entered.ends] for entered in list(self.rounds)])

    def exhaust(self, order):
        """Takes all descriptors but `spare`, under a limit that is low."""
        self.limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir("/proc/self/fd") if int(name) < 900)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + order["room"], self.limit[1]))
        try:
            while True:
                self.held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            told = word(error)
        for _ in range(min(order["spare"], len(self.held))):
            os.close(self.held.pop())
        self.say(exhausted=told, held=len(self.held))

    def relieve(self, _):
        """Gives them back."""
        while self.held:
            os.close(self.held.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limit)
        self.say(relieved=True)

    def starve(self, order):
        """Address space for `extra` bytes more than is in use: from here on maps fail."""
        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + order["extra"], hard))
        self.say(starved=True)

    def feed(self, _):
        """Takes that back."""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        self.say(fed=True)

    def eat(self, _):
        """Takes memory until the kernel has had enough of it."""
        eaten = []
        while True:
            eaten.append(bytearray(1 << 20))

    def go(self, order):
        """Ends this process, or this program, in one of the ways in which programs end."""
        how = order["how"]
        if how == "exit":
            # libc's exit: destructors run while other threads are in their calls.
            ctypes.CDLL(None).exit(0)
        if how == "_exit":
            os._exit(0)
        if how == "exec":
            os.execv("/bin/true", ["true"])
        if how == "exec-hold":
            for entered in self.rounds:
                for end in list(entered.ends):
                    os.set_inheritable(end.sock.fileno(), True)
            os.execv("/bin/sleep", ["sleep", "0.1"])

    def connects(self, order):
        """Many connections one after the other or in small bunches, of all kinds, each closed."""
        rng, done = random.Random(order["seed"]), 0
        while done < order["count"]:
            bunch = min(rng.choice([1, 1, 1, 3, 10]), order["count"] - done)
            host = f"127.0.{rng.randrange(256)}.{rng.randrange(1, 255)}"
            ends = []
            for _ in range(bunch):
                sock = socket.socket()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.bind((host, 0))
                sock.connect(("127.0.0.1", order["port"]))
                ends.append(sock)
            # Some say nothing, some little, some enough to earn a lane.
            trips = rng.choice([0] * 6 + [1] * 6 + [3] * 2 + [30])
            for i in range(trips):
                for sock in ends:
                    sock.sendall(TEXT[i : i + 50])
                for sock in ends:
                    got = sock.recv(50, socket.MSG_WAITALL)
                    if got != TEXT[i : i + 50]:
                        self.say(failed=f"connection {done}, trip {i}: {got!r}")
                        return
            for sock in ends:
                if rng.random() < 0.3:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
            done += bunch
        self.say(connects=done)

    def echo(self, _):
        """Serves `connects`: everything comes back, by an event loop of its own."""

        def serve():
            epoll, socks = select.epoll(), {}
            epoll.register(self.listener, select.EPOLLIN)
            while True:
                for number, _ in epoll.poll():
                    if number == self.listener.fileno():
                        try:
                            sock, _ = self.listener.accept()
                        except OSError:
                            continue
                        socks[sock.fileno()] = sock
                        epoll.register(sock, select.EPOLLIN)
                        continue
                    sock = socks[number]
                    try:
                        data = sock.recv(65_536)
                        if data:
                            sock.sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        epoll.unregister(sock)
                        socks.pop(number).close()

        threading.Thread(target=serve, daemon=True).start()
        self.say(echoing=True)

    def quit(self, _):
        """The orderly end."""
        ctypes.CDLL(None).exit(0)


def starve_to_death(what):
    """An exception that a thread did not expect: without memory the program dies, whole."""
    if issubclass(what.exc_type, (MemoryError, RuntimeError)):
        os._exit(EXIT_STARVED)
    threading.__excepthook__(what)


def main():
    """Obeys until standard input ends."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with open(int(sys.argv[1]), "r+b", closefd=True) as file:
        page = mmap.mmap(file.fileno(), 4096)
    threading.excepthook = starve_to_death
    threading.stack_size(STACK_BYTES)
    peer = Peer(page)
    peer.say(pid=os.getpid(), port=peer.listener.getsockname()[1])
    orders = b""
    while data := os.read(0, 65_536):
        orders += data
        while b"\n" in orders:
            line, orders = orders.split(b"\n", 1)
            order = json.loads(line)
            try:
                getattr(peer, order.pop("do"))(order)
            except (MemoryError, RuntimeError) as error:
                # No memory for itself, or for a thread: it dies as such programs do.
                print(repr(error), file=sys.stderr)
                os._exit(EXIT_STARVED)


if __name__ == "__main__":
    main()
