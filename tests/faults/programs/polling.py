"""Arrays of `poll` that are longer than most."""

import functools
import os
import select
import sys

import ends
from ends import main, pair

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
PIECE = 4096


@scenario
def room(count):
    """Whether a full connection is writable among so many entries, before its reader moves and after."""
    hear, tell = os.pipe()

    def reader(sock):
        os.read(hear, 1)
        ends.drain(sock, b"")

    sock, child = pair(reader)
    sock.setblocking(False)
    silent, _ = os.pipe()
    poll = select.poll()
    # One registration for each number: a silent pipe under many.
    for _ in range(int(count) - 1):
        poll.register(os.dup(silent), select.POLLIN)
    poll.register(sock, select.POLLOUT)
    # Who is seen to wait is told EAGAIN when the ring is full, while the kernel's buffers are empty.
    assert len(poll.poll(0)) == 1
    try:
        while True:
            sock.send(b"p" * PIECE)
    except BlockingIOError:
        pass
    full = [poll.poll(0), poll.poll(20)]
    os.write(tell, b"r")
    after = [events for _, events in poll.poll(20_000)]
    sock.close()
    os.waitpid(child, 0)
    return {"full": full, "after": after}


if __name__ == "__main__":
    sys.exit(main(TABLE))
