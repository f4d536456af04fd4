"""An end without the library that speaks the meeting by hand (standin.py) sends messages that carry no plain payload in its
ring: advertisements, changes of mode, requests. The process under the library sends back whatever it gets.

Each message is followed by a wake byte on the carrier, for the other end has no doorbell to wait at.
"""

import functools
import socket
import struct
import time

import ends
from ends import exactly, main
from standin import (
    ATTACHED, CONTROL, END_BYTES, ENDS, ENTRIES, HALF_BYTES, HALVES, LANE, MESSAGE, ON_SDP, PREFIX, READ, RING, SENT, SWITCHES,
    TAIL, TRUSTS, StandIn, answer,
)

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

HEAD, FOLLOWED = 384, 400
IS_MESSAGE = 1
ABORT, SEND_SM, MODE, SRC_CANCEL, RESIZE, SUSPEND = 3, 4, 7, 8, 11, 13
READ_COMPL, EXPERIMENTAL, SRC_AVAIL, DATA = 6, 0x7F, 0xFE, 0xFF
HEADER = "!BBHIII"
BUFFERED, COMBINED_BY_SINK = 0x00, 0x90
WAIT_S = 20


class Talker(StandIn):
    """An end that is on the SDP lane, in its own direction."""

    def enter(self):
        assert self.join(self.until(self.knock)) and self.until(self.is_other_attached)
        assert self.word_of_sleepers()
        self.own, self.other = (HALVES + side * HALF_BYTES for side in (self.side, self.side ^ 1))
        self.sent, self.heard, self.tail, self.head, self.entries = 0, 0, 0, 0, 0
        self.put(ENDS + self.side * END_BYTES + ATTACHED, 1)
        # All that was sent was read: it came back.
        (self.carrier,) = struct.unpack_from("Q", self.segment, self.own + READ)
        self.switch(ON_SDP)

    def switch(self, to):
        struct.pack_into("QQI", self.segment, self.own + ENTRIES + 24 * self.entries, self.carrier, self.tail, to)
        struct.pack_into("Q", self.segment, self.own + SENT, self.carrier)
        self.put(self.own + LANE, to)
        self.entries += 1
        self.put(self.own + SWITCHES, self.entries)

    def trust(self):
        """Says that this end reads what the other one sends through a ring."""
        self.put(self.other + TRUSTS, 1)

    def tell(self, mid, extended=b"", payload=b""):
        """A message in the ring, and a wake byte."""
        self.sent += 1
        length = 16 + len(extended) + len(payload)
        said = struct.pack(HEADER, mid, 0, 0xFFFF, length, self.sent, self.heard) + extended + payload
        record = struct.pack("II", length, IS_MESSAGE) + said
        at = CONTROL + self.side * RING + self.tail
        self.segment[at : at + len(record)] = record
        self.tail += -(-len(record) // 16) * 16
        assert self.tail < RING
        struct.pack_into("Q", self.segment, self.own + TAIL, self.tail)
        self.wake()

    def wake(self):
        self.sock.sendall(b"w")
        self.carrier += 1
        struct.pack_into("Q", self.segment, self.own + SENT, self.carrier)

    def advertise(self, payload, size):
        """SrcAvail of a buffer of that many bytes, the first of which it carries."""
        self.tell(SRC_AVAIL, struct.pack("!IIQ", size, 7, 0x1000), payload)

    def has_more(self):
        return struct.unpack_from("Q", self.segment, self.other + TAIL)[0] != self.head

    def hear(self):
        """The next message of the other end: what it is, what it acknowledges, and what follows the header."""
        end = time.monotonic() + WAIT_S
        while not self.has_more():
            assert time.monotonic() < end, "no message"
            time.sleep(0.0005)
        at = CONTROL + (self.side ^ 1) * RING + self.head
        length, kind = struct.unpack_from("II", self.segment, at)
        assert kind == IS_MESSAGE
        mid, _, _, size, number, ack = struct.unpack_from(HEADER, self.segment, at + 8)
        assert size == length and number == self.heard + 1
        rest = bytes(self.segment[at + 24 : at + 8 + length])
        self.heard = number
        self.head += -(-(8 + length) // 16) * 16
        self.put(self.other + FOLLOWED, self.word(self.other + SWITCHES))
        struct.pack_into("Q", self.segment, self.other + HEAD, self.head)
        return mid, ack, rest

    def hear_data(self, size):
        """Payload, in as many messages as it takes."""
        got = b""
        while len(got) < size:
            mid, _, rest = self.hear()
            assert mid == DATA, mid
            got += rest
        return got

    def was_reset(self):
        """Whether the other end resets the connection."""
        self.sock.settimeout(WAIT_S)
        try:
            while self.sock.recv(4096):
                pass
        except ConnectionResetError:
            return True
        return False


def text(mark, size):
    return (mark * size)[:size].encode()


def on_the_lane(peer):
    """Both halves: what was sent before came back through the ring."""
    peer.enter()
    peer.trust()
    peer.tell(DATA, b"", text("a", MESSAGE))
    assert peer.hear_data(MESSAGE) == text("a", MESSAGE)


def advert(peer):
    """SendSm comes back, the payload is delivered, and the rest goes as Data; then all of it once more."""
    on_the_lane(peer)
    seen = []
    for turn in "bcd":
        first, rest = text(turn, MESSAGE), text(turn.upper(), 3 * MESSAGE)
        peer.advertise(first, len(first + rest))
        number, answers, back = peer.sent, [], b""
        while len(back) < MESSAGE or not answers:
            mid, ack, found = peer.hear()
            if mid == DATA:
                back += found
            else:
                answers.append((mid, ack - number, len(found)))
        peer.tell(DATA, b"", rest)
        back += peer.hear_data(len(rest))
        seen.append([answers, back == first + rest])
    return {"seen": seen}


def behind_the_carrier(peer):
    """The other end sends by the carrier, and may not leave that: its answer waits until it may, whatever it has to send."""
    peer.enter()
    first, rest = text("x", MESSAGE), text("y", 2 * MESSAGE)
    peer.advertise(first, len(first + rest))
    back = exactly(peer.sock, MESSAGE)
    is_quiet = not peer.has_more()
    peer.trust()
    # An empty message: the other end has nothing to send back.
    peer.tell(DATA)
    mid, ack, found = peer.hear()
    answer = [mid, ack - peer.sent, len(found)]
    peer.tell(DATA, b"", rest)
    back += peer.hear_data(len(rest))
    return {"seen": [is_quiet, answer, back == first + rest]}


def cancelled(peer):
    """A cancellation needs no second answer."""
    on_the_lane(peer)
    peer.advertise(text("x", MESSAGE), 2 * MESSAGE)
    peer.tell(SRC_CANCEL)
    found = [peer.hear()[0] for _ in range(2)]
    peer.tell(DATA, b"", text("y", MESSAGE))
    return {"seen": [sorted(found), peer.hear_data(MESSAGE) == text("y", MESSAGE), peer.has_more()]}


def requests(peer):
    """Messages that are answered, change something, or mean nothing: the stream goes on behind each."""
    on_the_lane(peer)
    seen = []
    for mid, extended in [
        (RESIZE, struct.pack("!I", 1 << 20)),
        (SEND_SM, b""),
        (SRC_CANCEL, b""),
        (EXPERIMENTAL, b""),
        (MODE, bytes([BUFFERED, 0, 0, 0])),
        (DATA, b""),
    ]:
        peer.tell(mid, extended)
        answer = []
        if mid == RESIZE:
            what, ack, size = peer.hear()
            # It keeps the size that it told when the ends met.
            (told,) = struct.unpack_from("!I", peer.answer, PREFIX + 20)
            answer = [what, ack - peer.sent, struct.unpack("!I", size)[0] - told]
        peer.tell(DATA, b"", text("z", MESSAGE))
        seen.append([mid, answer, peer.hear_data(MESSAGE) == text("z", MESSAGE)])
    return {"seen": seen}


def suspended(peer):
    """Nothing more comes by the ring: the stream goes on by the carrier, both ways."""
    on_the_lane(peer)
    peer.tell(SUSPEND, struct.pack("!Q", 0x10000 + 5001))
    peer.switch(0)
    before = len(text("a", MESSAGE))
    peer.sock.sendall(text("k", MESSAGE))
    # A wake byte of its own may come first.
    back = b""
    while len(back.lstrip(b"\0w")) < MESSAGE:
        more = peer.sock.recv(MESSAGE)
        assert more
        back += more
    return {"seen": [before == MESSAGE, back.endswith(text("k", MESSAGE)), peer.has_more()]}


def broken(peer, what):
    """What breaks a rule resets the connection."""
    on_the_lane(peer)
    if what == "second":
        peer.advertise(text("x", MESSAGE), 2 * MESSAGE)
        peer.advertise(text("y", MESSAGE), 2 * MESSAGE)
    elif what == "beside":
        peer.advertise(text("x", MESSAGE), 2 * MESSAGE)
        peer.tell(DATA, b"", text("y", MESSAGE))
    elif what == "bare":
        peer.advertise(b"", MESSAGE)
    elif what == "unasked":
        peer.tell(READ_COMPL, struct.pack("!I", 1))
    elif what == "mode":
        peer.tell(MODE, bytes([COMBINED_BY_SINK, 0, 0, 0]))
    else:
        peer.tell(ABORT)
    return {"seen": peer.was_reset(), "end": True}


STORIES = {
    "advert": advert,
    "behind_the_carrier": behind_the_carrier,
    "cancelled": cancelled,
    "requests": requests,
    "suspended": suspended,
    **{what: functools.partial(broken, what=what) for what in ("second", "beside", "bare", "unasked", "mode", "abort")},
}


@scenario
def stand_in(name, port):
    """The process without the library."""
    peer = Talker(socket.create_connection(("127.0.0.1", int(port))))
    seen = STORIES[name](peer)
    if "end" not in seen:
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(4096):
            pass  # wake bytes
        seen["end"] = True
    return seen


@scenario
def against(name):
    """The process with it: sends back what it gets, until the end."""
    return answer(__file__, name)


if __name__ == "__main__":
    main(TABLE)
