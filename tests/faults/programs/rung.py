"""A set whose connections end while another one of it keeps ringing."""

import functools
import select
import struct
import sys

import ends
from ends import main, pair, warm_up

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
OTHERS = 5
# Round trips of the busy connection while one of the others ends.
TRIPS = 400
# After so many of them it ends.
END_AFTER = 5


def peer(busy):
    """Connects the others, ends them one by one, and is never silent on its own."""
    port = struct.unpack("!H", ends.exactly(busy, 2))[0]
    others = []
    for _ in range(OTHERS):
        others.append(ends.socket.create_connection(("127.0.0.1", port)))
        warm_up(others[-1], True)
    for other in others:
        for trip in range(TRIPS):
            if trip == END_AFTER:
                other.close()
            busy.sendall(b"x")
            assert ends.exactly(busy, 1) == b"x"
    busy.close()


@scenario
def the_end_of_each(edge):
    """Each end is reported while the round trips go on, whichever registration it is."""
    listener = ends.listener()
    mode = select.EPOLLIN | (select.EPOLLET if edge == "edge" else 0)
    busy, _ = pair(peer)
    busy.sendall(struct.pack("!H", listener.getsockname()[1]))
    others = {}
    for _ in range(OTHERS):
        sock, _ = listener.accept()
        warm_up(sock, False)
        others[sock.fileno()] = (len(others), sock)
    poller = select.epoll()
    # One of the others comes first: the set's wake-ups are reported under its name.
    for number in [*others, busy.fileno()]:
        poller.register(number, mode)
    seen, trips = [], 0
    while True:
        for number, events in poller.poll():
            if number == busy.fileno():
                data = busy.recv(100)
                if not data:
                    return {"ends": seen}
                busy.sendall(data)
                trips += 1
                continue
            which, sock = others[number]
            if events & ~mode == 0 and sock.recv(1) == b"":
                poller.unregister(number)
                sock.close()
                # During which connection's round trips.
                seen.append([which, (trips - 1) // TRIPS])


if __name__ == "__main__":
    sys.exit(main(TABLE))
