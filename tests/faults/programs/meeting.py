"""Connections whose addresses are translated on their way, so that each one's name is also another's.

In a network namespace of its own. Two servers and two clients, all of them processes; what the clients heard is compared.
"""

import functools
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import ends
from ends import exactly, main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

PORTS = 8000, 9000
# Where the clients are bound: what is translated is the server's port, or theirs.
BOUND = {"redirect": (40000, 40000), "stateless": (40000, 40000), "source": (40001, 40002), "none": (40001, 40002)}
# Which servers they mean to reach.
MEANT = {"redirect": PORTS, "stateless": PORTS, "source": (8000, 8000), "none": PORTS}
SWAP = "{ 8000 : 9000, 9000 : 8000 }"
RULES = {
    # No translation; but whoever is connected is known to connection tracking.
    "none": "chain out { type filter hook output priority 0; ct state invalid drop; }",
    "redirect": """chain out { type nat hook output priority -100;
        tcp dport 8000 redirect to :9000; tcp dport 9000 redirect to :8000; }""",
    "source": """chain out { type nat hook postrouting priority 100;
        meta nfproto ipv4 tcp dport 8000 tcp sport 40001 snat ip to 127.0.0.1:40002;
        meta nfproto ipv4 tcp dport 8000 tcp sport 40002 snat ip to 127.0.0.1:40001;
        meta nfproto ipv6 tcp dport 8000 tcp sport 40001 snat ip6 to [::1]:40002;
        meta nfproto ipv6 tcp dport 8000 tcp sport 40002 snat ip6 to [::1]:40001; }""",
    # Connection tracking knows nothing of it.
    "stateless": f"""chain out {{ type filter hook output priority -300;
        tcp dport set tcp dport map {SWAP}; tcp sport set tcp sport map {SWAP}; }}""",
}
ADDRESS = {"4": "127.0.0.1", "6": "::1", "mapped": "::ffff:127.0.0.1"}
MESSAGE = 64
# Rounds in which everybody says the same, and in which everybody says who it is.
SAME, OWN = 60, 20


def translate(how):
    """Loads the rules."""
    rules = f"table inet test {{\n{RULES[how]}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


def fresh(family):
    """A socket that may share its port."""
    sock = socket.socket(socket.AF_INET if family == "4" else socket.AF_INET6)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def answer(sock, name):
    """Sends each message back, with the name in it where the message begins with a star."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := exactly(sock, MESSAGE):
        if message.startswith(b"*"):
            message += name
        sock.sendall(message[-MESSAGE:])
    sock.close()


def serve(port, family):
    """A server, which tells its port in its answers."""
    lst = fresh("6" if family == "mapped" else family)
    lst.bind(("::" if family == "mapped" else ADDRESS[family], port))
    lst.listen(8)

    while True:
        sock, _ = lst.accept()
        threading.Thread(target=answer, args=(sock, b"%d" % port), daemon=True).start()


class Client:
    """One end that asks."""

    def __init__(self, family, bound, port):
        self.sock = fresh("4" if family == "mapped" and bound % 2 == 0 else family)
        address = ADDRESS["4" if self.sock.family == socket.AF_INET else family]
        self.sock.bind((address, bound))
        self.sock.connect((address, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, text):
        self.sock.sendall(text.ljust(MESSAGE, b"."))

    def hear(self):
        return exactly(self.sock, MESSAGE)

    def end(self):
        """Goes when the other end has read everything."""
        self.sock.shutdown(socket.SHUT_WR)
        exactly(self.sock, 1)
        # As a reset, so that the port is free at once.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def texts(name, content):
    """What a client says."""
    same = [b"%s %d" % (b"x" if content == "same" else name, i) for i in range(SAME)]
    if content == "longer":
        same = [text + b" " * (MESSAGE * (name == b"a")) for text in same]
    return same + [b"*%s %d" % (name, i) for i in range(OWN)]


class Beat:
    """Two processes that go on at the same moment."""

    def __init__(self):
        self.page = mmap.mmap(-1, mmap.PAGESIZE)

    def meet(self, place, count):
        """Waits until the other one is there as well."""
        self.page[8 * place : 8 * place + 8] = struct.pack("q", count)
        other = 8 * (1 - place)
        while struct.unpack_from("q", self.page, other)[0] < count:
            os.sched_yield()


def told(answers):
    """What a client heard, in short: the server's ports, and by how many answers to other questions."""
    heard = {answer[-4:].decode() for text, answer in answers if text.startswith(b"*")}
    wrong = sum(answer[: len(text)] not in (text, text[4:]) and text[4:] not in answer for text, answer in answers)
    return [sorted(heard), wrong]


def alone(how, family, content):
    """One process is both clients, in turn."""
    both = [Client(family, *ends_) for ends_ in zip(BOUND[how], MEANT[how])]
    answers = [], []
    for pair in zip(texts(b"a", content), texts(b"b", content)):
        for client, text in zip(both, pair):
            client.send(text)
        for client, text, to in zip(both, pair, answers):
            to.append((text, client.hear()))
    for client in both:
        client.end()
    return [told(answer) for answer in answers]


def beside(how, family, content, place, beat):
    """One of two client processes that do everything at the same moment."""
    client = Client(family, BOUND[how][place], MEANT[how][place])
    answers = []
    for count, text in enumerate(texts((b"a", b"b")[place], content), 1):
        beat.meet(place, count)
        client.send(text)
        answers.append((text, client.hear()))
    client.end()
    return told(answers)


def child(body, *args):
    """A process that waits for a word, does its part, and tells what came of it; (its id, its way)."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        signal.alarm(50)
        ours.close()
        try:
            while word := theirs.recv(1):
                theirs.sendall(repr(body(word, *args)).encode().ljust(200))
        except BaseException as error:
            print(f"{body.__name__}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    theirs.close()
    return pid, ours


def ask(ways, word):
    """Lets them all do their part."""
    for way in ways:
        way.sendall(word)
    return [exactly(way, 200).decode().strip() for way in ways]


@scenario
def translated(how, family, content, drive, again):
    """Two clients, whose connections have each other's names. `again`: their processes have met the servers before."""
    servers = []
    for port in PORTS:
        pid = os.fork()
        if pid == 0:
            signal.alarm(50)
            serve(port, family)
        servers.append(pid)
    beat = Beat()

    def part(word, place):
        if word == b"w":
            for port in PORTS if drive == "alone" else (MEANT[how][place],):
                client = Client(family, 50000 + 10 * place + port % 7, port)
                for i in range(80):
                    client.send(b"%d" % i)
                    client.hear()
                client.end()
            return True
        if drive == "alone":
            return alone(how, family, content)
        return beside(how, family, content, place, beat)

    clients = [child(part, place) for place in range(1 if drive == "alone" else 2)]
    time.sleep(0.3)
    ways = [way for _, way in clients]
    if again == "again":
        ask(ways, b"w")
    translate(how)
    heard = ask(ways, b"g")
    for pid in servers:
        ends.kill(pid)
    for way in ways:
        way.close()
    assert [ends.reap(pid) for pid, _ in clients] == [0] * len(clients)
    return {"heard": heard}


# A host, a container whose addresses it translates to its own, and a port that both clients take.
HOST, INSIDE, TAKEN = "10.77.0.1", "10.77.0.2", 45000


def order(word):
    """A command of `ip`."""
    subprocess.run(["ip", *word.split()], check=True)


def asks(address, name):
    """A connection from an address and the port that everybody takes; what it hears, when it is told to ask."""
    sock = fresh("4")
    sock.bind((address, TAKEN))
    sock.connect((HOST, 8000))
    answers = []
    yield
    for text in texts(name, "same"):
        sock.sendall(text.ljust(MESSAGE, b"."))
        answers.append((text, exactly(sock, MESSAGE)))
        yield told(answers)


@scenario
def inside():
    """The client in the container, which is told when to go on."""
    sys.stdin.readline()
    for word in ("link set lo up", f"addr add {INSIDE}/24 dev v1", "link set v1 up"):
        order(word)
    heard = None
    for heard in asks(INSIDE, b"a"):
        print(json.dumps(heard), flush=True)
        sys.stdin.readline()
    return {"heard": heard}


@scenario
def rewritten():
    """Connection tracking gives the second client another port: the server's end of the first has the second's name."""
    words = ["unshare", "--net", sys.executable, __file__, "inside"]
    remote = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)
    order(f"link add v0 type veth peer name v1 netns {remote.pid}")
    order(f"addr add {HOST}/24 dev v0")
    order("link set v0 up")
    rules = f"chain in {{ type nat hook input priority 100; ip saddr {INSIDE} tcp dport 8000 snat to {HOST}; }}"
    subprocess.run(["nft", "-f", "-"], input=f"table ip test {{\n{rules}\n}}\n", text=True, check=True)

    def serve_in_order(way):
        lst = fresh("4")
        lst.bind((HOST, 8000))
        lst.listen(2)
        way.sendall(b"r")
        for place in b"0001", b"0002":
            threading.Thread(target=answer, args=(lst.accept()[0], place), daemon=True).start()
        way.recv(1)

    pid, way = ends.started(serve_in_order)
    exactly(way, 1)

    def go_on():
        remote.stdin.write("\n")
        remote.stdin.flush()
        return json.loads(remote.stdout.readline())

    go_on()
    local = asks(HOST, b"b")
    next(local)
    heard = [[], []]
    for heard[1] in local:
        heard[0] = go_on()
    remote.communicate("\n")
    local.close()
    ends.kill(pid)
    return {"heard": heard, "code": remote.returncode}


@scenario
def streams(how):
    """Two streams at one pace, whose readers are slow: what each of them got."""
    translate(how)
    hear, tell = os.pipe()

    def read(sock):
        got = set()
        while data := sock.recv(1 << 16):
            got |= set(data.decode())
            time.sleep(0.002)
        os.write(tell, "".join(sorted(got)).encode() + b"\n")

    def listen(_, port):
        lst = fresh("4")
        lst.bind((ADDRESS["4"], port))
        lst.listen(8)
        while True:
            threading.Thread(target=read, args=lst.accept()[:1], daemon=True).start()

    def write(_, place, beat):
        client = Client("4", BOUND[how][place], MEANT[how][place])
        beat.meet(place, 1)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            client.sock.sendall((b"a", b"b")[place] * 65536)
        client.sock.close()

    beat = Beat()
    children = []
    for body, args in [(listen, (port,)) for port in PORTS] + [(write, (place, beat)) for place in (0, 1)]:
        children.append(child(body, *args))
        children[-1][1].send(b".")
        time.sleep(0.2 if body is listen else 0)
    got = b""
    while got.count(b"\n") < 2:
        got += os.read(hear, 100)
    for pid, _ in children:
        ends.kill(pid)
    return {"got": sorted(got.decode().split())}


if __name__ == "__main__":
    main(TABLE)
