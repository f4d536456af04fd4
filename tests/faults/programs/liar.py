"""A process of the same user, with whom segments are kept, claims a connection that is another one's.

The process under the library, the *victim*, has met the *liar* before: a program without the library that speaks the meeting by
hand, and shares an idle segment with the victim. It does not know the victim's secret, for which it tells something else, so
that it is not believed (docs/spec/shm.md, section 6.1). Then the victim and an *honest* process, without the library, make a connection,
and the liar answers for it on the board. Told the truth, of a connection of its own, the same words are taken.

The victim starts both, and tells them line by line when to do what.
"""

import functools
import json
import os
import socket
import struct
import subprocess
import sys
import time

import ends
from ends import exactly, main
from standin import (
    ATTACHED, BELL_BYTES, CONTROL, END_BYTES, ENDS, ENTRIES, HALF_BYTES, HALVES, LANE, MESSAGE, ON_SDP, RING, SENT, SWITCHES, TAIL,
    TRUSTS, StandIn, binary, name_of, sealed, side_of,
)

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

# The board (docs/spec/shm.md, section 6.1), and what a claim says in a segment's first life, or of the next one.
CLAIM, PLACES, PLACE_BYTES = 2048, 2176, 128
RELEASED, GONE, DESCRIPTOR, NAME, SECRET_AT, TOLD = 0, 4, 8, 16, 56, 64
OFFERED, TAKEN, CONFIRMED = 1, 3, 4
CLAIMS = {OFFERED: "offered", OFFERED + 1: "offered", TAKEN: "taken", CONFIRMED: "confirmed"}
NAME_BYTES = 36
# A data message in a ring.
IS_MESSAGE, DATA = 1, 0xFF
ALL_ARM = 2
# A number at which nobody has anything.
FREE = 900
# Messages of the second connection; the other end has the first one when the liar lies.
ROUNDS = 300
PATIENCE_S = 20
MARK, LIE = b"for honest eyes ", b"from a liar's mouth "


def message(number):
    return (MARK + str(number).encode()).ljust(MESSAGE, b".")


def eventually(condition):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never was so")


def hear():
    line = sys.stdin.readline()
    assert line, "nobody is there"
    return line.split()


def say(*words):
    print(*words, flush=True)


def bound(port):
    """A socket of an address that others may bind, too."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


class Liar(StandIn):
    """An end whose process the other one remembers."""

    # What is only held.
    others = ()

    def meet(self):
        """To the end of a connection, after which both keep its segment."""
        unix = self.until(self.knock)
        assert unix, "no offer"
        bell, page = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), sealed("sdp-bell", BELL_BYTES)
        assert self.join(unix, bell, page) and self.until(self.is_other_attached)
        self.sock.shutdown(socket.SHUT_WR)
        assert exactly(self.sock, 1) == b""
        # The best guess that it has: what the victim says of its secret.
        (place,) = struct.unpack_from("Q", self.segment, self.other + SECRET_AT)
        assert place
        struct.pack_into("Q", self.segment, self.own + TOLD, place)
        self.put(self.own + RELEASED, 1)
        eventually(lambda: self.word(self.other + RELEASED) == 1)

    @property
    def own(self):
        return PLACES + self.side * PLACE_BYTES

    @property
    def other(self):
        return PLACES + (self.side ^ 1) * PLACE_BYTES

    def number(self, kind):
        """A descriptor number to tell: none of them is the connection's other end."""
        if kind == "own":
            with ends.listener() as listener:
                self.others = socket.create_connection(listener.getsockname()), *listener.accept()
            return self.others[0].fileno()
        return {"kept": self.sock.fileno(), "free": FREE, "huge": 0xFFFFFFFF}[kind]

    def stand_at(self, number, side):
        """Says what an end says that is attached, and whose sleepers arm: the other one may send on its lane."""
        self.put(self.own + DESCRIPTOR, number)
        self.put(ENDS + side * END_BYTES + ATTACHED, 1)
        self.put(HALVES + (side ^ 1) * HALF_BYTES + TRUSTS, ALL_ARM)

    def take(self, number, side):
        """Answers the offer that is on the board."""
        self.segment[:CLAIM] = bytes(CLAIM)
        self.stand_at(number, side)
        self.put(CLAIM, TAKEN)

    def offer(self, name, number):
        self.segment[:CLAIM] = bytes(CLAIM)
        self.segment[self.own + NAME : self.own + NAME + NAME_BYTES] = name
        self.put(self.own + DESCRIPTOR, number)
        self.put(CLAIM, OFFERED + self.side)

    def forge(self, side):
        """Goes to the lane behind the first message, and sends something there."""
        half, ring = HALVES + side * HALF_BYTES, CONTROL + side * RING
        said = (LIE * MESSAGE)[: MESSAGE * (ROUNDS - 1)]
        said = struct.pack("!BBHIII", DATA, 0, 0xFFFF, 16 + len(said), 1, 0) + said
        record = struct.pack("II", len(said), IS_MESSAGE) + said
        self.segment[ring : ring + len(record)] = record
        struct.pack_into("QQI", self.segment, half + ENTRIES, MESSAGE, 0, ON_SDP)
        struct.pack_into("Q", self.segment, half + SENT, MESSAGE)
        self.put(half + LANE, ON_SDP)
        self.put(half + SWITCHES, 1)
        struct.pack_into("Q", self.segment, half + TAIL, -(-len(record) // 16) * 16)

    def found(self, side):
        """What the victim, at the other side than `side`, has made of it."""
        return {
            "attached": self.word(ENDS + (side ^ 1) * END_BYTES + ATTACHED),
            "gone": self.word(self.other + GONE),
            "claim": CLAIMS.get(self.word(CLAIM)),
            "stolen": MARK in self.segment[:],
        }


@scenario
def taker(kind):
    """Listens where the honest one will, and answers the offer that was meant for that one."""
    listener = bound(int(hear()[0]))
    listener.listen()
    at = listener.getsockname()
    say(at[1])
    peer = Liar(listener.accept()[0])
    peer.meet()
    if kind != "right":
        listener.close()
    say("kept")
    hear()
    if kind == "right":
        sock = listener.accept()[0]
        number = sock.fileno()
    else:
        number = peer.number(kind)
    eventually(lambda: peer.word(CLAIM) == OFFERED + (peer.side ^ 1))
    name = peer.segment[peer.other + NAME : peer.other + NAME + NAME_BYTES]
    side = int(not name.startswith(binary(*at)))
    peer.take(number, side)
    if kind == "right":
        # What is promised here nobody keeps: messages of that connection go over TCP.
        peer.put(ENDS + side * END_BYTES + ATTACHED, 0)
        assert name == name_of(sock)
    say("taken")
    if kind == "right":
        for _ in range(ROUNDS):
            sock.sendall(exactly(sock, MESSAGE))
    hear()
    return peer.found(side)


@scenario
def offerer(kind):
    """Offers somebody else's connection, and talks in it."""
    (port,) = hear()
    peer = Liar(socket.create_connection(("127.0.0.1", port)))
    peer.meet()
    say("kept")
    if kind == "right":
        sock = socket.create_connection(("127.0.0.1", port))
        name, number, side = name_of(sock), sock.fileno(), side_of(sock)
        sock.sendall(message(0))
    else:
        name, side = hear()
        name, number, side = bytes.fromhex(name), peer.number(kind), int(side)
    peer.offer(name, number)
    say("offered")
    if kind == "right":
        for i in range(ROUNDS):
            if i > 0:
                sock.sendall(message(i))
            assert exactly(sock, MESSAGE) == message(i)
    else:
        hear()
        peer.stand_at(number, side)
        peer.forge(side)
        say("forged")
    hear()
    return peer.found(side)


@scenario
def server():
    """The honest one, who knows of nothing: echoes."""
    # Bound from the beginning: nobody else gets the port meanwhile. Two may be, as long as neither listens.
    with bound(0) as listener:
        say(listener.getsockname()[1])
        hear()
        listener.listen()
        say("listens")
        sock = listener.accept()[0]
    say("accepted")
    ends.echo(sock)
    return {}


@scenario
def client():
    """The honest one: sends messages, which must come back."""
    sock = socket.create_connection(("127.0.0.1", hear()[0]), PATIENCE_S)
    return {"right": ask(sock, 0) and try_all(ask, sock)}


class Other:
    """A process without the library that does as it is told."""

    def __init__(self, *words):
        env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, __file__, *words], env=env, text=True, **pipes)

    def tell(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def hear(self):
        line = self.process.stdout.readline().strip()
        assert line, f"{self.process.args} is gone"
        return line

    def end(self):
        """What it saw."""
        seen = json.loads(self.hear())
        self.process.stdin.close()
        assert self.process.wait() == 0
        return seen


def try_all(exchange, sock):
    """Messages with numbers from 1 on; whether all went well."""
    sock.settimeout(PATIENCE_S)
    try:
        return all(exchange(sock, i) for i in range(1, ROUNDS))
    except OSError as error:
        print(f"a message is lost: {error!r}", file=sys.stderr, flush=True)
        return False


def ask(sock, number):
    sock.sendall(message(number))
    return exactly(sock, MESSAGE) == message(number)


def answer(sock, number):
    data = exactly(sock, MESSAGE)
    sock.sendall(data)
    return data == message(number)


@scenario
def offers(kind):
    """The victim connects to where the liar was."""
    # Before there is anything to keep: a fork ends that.
    liar = Other("taker", kind)
    honest = Other("server") if kind != "right" else None
    liar.tell(honest.hear() if honest else 0)
    port = int(liar.hear())
    with socket.create_connection(("127.0.0.1", port)) as sock:
        ends.echo(sock)
    assert liar.hear() == "kept"
    if honest:
        honest.tell("listen")
        assert honest.hear() == "listens"
    with socket.create_connection(("127.0.0.1", port)) as sock:
        # The call that puts the offer on the board.
        sock.sendall(message(0))
        if honest:
            assert honest.hear() == "accepted"
        liar.tell("take")
        assert liar.hear() == "taken"
        fine = exactly(sock, MESSAGE) == message(0) and try_all(ask, sock)
        liar.tell("look")
        seen = liar.end()
    if honest:
        honest.end()
    return seen | {"fine": fine}


@scenario
def accepts(kind):
    """The victim is one to whom the liar has connected."""
    liar = Other("offerer", kind)
    honest = Other("client") if kind != "right" else None
    with ends.listener() as listener:
        port = listener.getsockname()[1]
        liar.tell(port)
        with listener.accept()[0] as sock:
            ends.echo(sock)
        assert liar.hear() == "kept"
        if honest:
            honest.tell(port)
        sock = listener.accept()[0]
    with sock:
        if honest:
            liar.tell(name_of(sock).hex(), side_of(sock) ^ 1)
        assert liar.hear() == "offered"
        # The call that looks at the board.
        fine = answer(sock, 0)
        if honest:
            liar.tell("forge")
            assert liar.hear() == "forged"
        fine = try_all(answer, sock) and fine
        liar.tell("look")
        seen = liar.end()
    if honest:
        fine = honest.end()["right"] and fine
    return seen | {"fine": fine}


if __name__ == "__main__":
    main(TABLE)
