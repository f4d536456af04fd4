"""Connections whose other end takes part in the meeting and then is not there.

The process under the library meets a stand-in, so that each of its steps comes exactly when the scenario wants it. Both
exchange small messages over TCP meanwhile, by which the library takes its steps.
"""

import errno
import functools
import socket
import struct
import time

import ends
from ends import exactly, main
from standin import (
    ATTACHED, END_BYTES, ENDS, ENTRIES, HALF_BYTES, HALVES, LANE, ON_SDP, READ, RESET, SENT, SWITCHES, StandIn, answer, is_readable,
)

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

# Of the messages with which an end counts enough calls to give up, and the time that it waits at least.
CALLS, GIVES_UP_S = 1200, 2.2
# Bound of a wait for what takes seconds.
PATIENCE_S = 40


def is_offered(peer):
    """Whether somebody is at the meeting place; asked without going there."""
    name = peer.place.replace(b"\0", b"@")
    with open("/proc/net/unix", "rb") as table:
        return name in table.read()


def eventually(peer, condition):
    """As `until`, for what takes seconds."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return True
        peer.trip(CALLS // 20)
        time.sleep(0.01)
    return False


def unmet(peer):
    """Comes to the second meeting only."""
    seen = [
        eventually(peer, lambda: is_offered(peer)),
        eventually(peer, lambda: not is_offered(peer)),
        eventually(peer, lambda: is_offered(peer)),
    ]
    assert peer.join(peer.until(peer.knock))
    attached = bool(peer.until(peer.is_other_attached))
    return {"seen": seen, "attached": attached, "says": peer.word_of_sleepers()}


def disowned(peer):
    """Joins, is told yes, and does not use the segment."""
    unix = peer.until(peer.knock)
    assert peer.join(unix)
    unix.close()
    alone = peer.until(peer.is_other_attached)
    peer.trip(300)
    before = peer.knock()
    peer.disown()
    # The other end is young again, and comes to the meeting place a second time, where all ends well.
    unix = peer.until(peer.knock)
    seen = {"alone": bool(alone), "offers": before is not None, "again": bool(unix)}
    assert peer.join(unix)
    return seen | {"attached": bool(peer.until(peer.is_other_attached))}


def late(peer, says_yes):
    """Listens, and takes its time: until the joiner has had enough, or only about that long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(peer.place)
    listener.listen(8)
    unix = peer.take_join(listener)
    peer.trip(CALLS)
    # Were this too short, nothing but the test would be lost: the answer would come in time.
    time.sleep(GIVES_UP_S)
    if says_yes:
        peer.say_yes(unix)
        attached = bool(peer.until(peer.is_other_attached))
        return {"attached": attached, "says": peer.word_of_sleepers()}
    gone = bool(peer.until(lambda: is_readable(unix)))
    try:
        peer.say_yes(unix)
        refused = None
    except OSError as error:
        refused = errno.errorcode[error.errno]
    unix = peer.take_join(listener)
    alone = peer.is_other_attached()
    peer.say_yes(unix)
    attached = bool(peer.until(peer.is_other_attached))
    return {"gone": gone, "refused": refused, "alone": alone, "attached": attached}


def cut_off(peer):
    """Goes to the lane, counts a bell, and resets the connection on purpose, with which the bell is lost."""
    assert peer.join(peer.until(peer.knock)) and peer.until(peer.is_other_attached)
    assert peer.word_of_sleepers()
    half, end = HALVES + peer.side * HALF_BYTES, ENDS + peer.side * END_BYTES
    (read,) = struct.unpack_from("Q", peer.segment, half + READ)
    peer.put(end + ATTACHED, 1)
    peer.put(end + RESET, 1)
    struct.pack_into("QQI", peer.segment, half + ENTRIES, read, 0, ON_SDP)
    struct.pack_into("Q", peer.segment, half + SENT, read + 1)
    peer.put(half + LANE, ON_SDP)
    peer.put(half + SWITCHES, 1)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()
    return {"read": read > 0, "end": True}


STAND_INS = {
    "cut_off": cut_off,
    "disowned": disowned,
    "late_yes": functools.partial(late, says_yes=True),
    "unmet": unmet,
    "late_no": functools.partial(late, says_yes=False),
}


@scenario
def stand_in(name, port):
    """The process without the library."""
    peer = StandIn(socket.create_connection(("127.0.0.1", int(port))))
    seen = STAND_INS[name](peer)
    if "end" in seen:
        return seen
    peer.sock.shutdown(socket.SHUT_WR)
    return seen | {"end": exactly(peer.sock, 1) == b""}


@scenario
def against(name):
    """The process with it: answers until the end."""
    return answer(__file__, name)


if __name__ == "__main__":
    main(TABLE)
