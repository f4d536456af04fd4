"""Sets and bells: ends while another connection keeps ringing, and bells that a receive call takes before the set does."""

import fcntl
import functools
import os
import select
import struct
import sys
import termios
import threading

import ends
from ends import main, pair, warm_up

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
OTHERS = 5
# Round trips of the busy connection while one of the others ends.
TRIPS = 400
# After so many of them it ends.
END_AFTER = 5
# How often a call takes a bell.
ROUNDS = 5


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


def look(sock, how):
    """A look at what has come, by a call that takes the bell, too, if there is one."""
    if how == "poll":
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    if how == "count":
        return struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4))[0] > 0
    return True


@scenario
def taken_by_a_call(mode, how):
    """A fork child, which has no bells but those on the carrier, takes one with the bytes by a call. What comes after
    that its set still tells."""
    go_on, goes_on = os.pipe()

    def sender(sock):
        os.close(goes_on)
        while what := os.read(go_on, 1):
            sock.sendall(what)

    sock, peer_pid = pair(sender)
    os.close(go_on)
    child = os.fork()
    if child == 0:
        sock.setblocking(False)
        bits = select.EPOLLIN | {"edge": select.EPOLLET, "once": select.EPOLLONESHOT}.get(mode, 0)
        poller = select.epoll()
        poller.register(sock, bits)
        code = 0
        for _ in range(ROUNDS):
            poller.poll(0)  # nothing: the connection is armed
            if mode == "once":
                poller.modify(sock, bits)
            os.write(goes_on, b"x")
            ends.settle(0.02)
            code |= not look(sock, how)
            code |= sock.recv(10) != b"x"
            code |= 2 * (ends.outcome(sock.recv, 10) != "EAGAIN")
            os.write(goes_on, b"y")
            code |= 4 * ([event for _, event in poller.poll(ends.PATIENCE_S)] != [select.EPOLLIN])
            code |= 8 * (sock.recv(10) != b"y" or ends.outcome(sock.recv, 10) != "EAGAIN")
            if mode == "once":
                poller.modify(sock, bits)
        os._exit(code)
    sock.close()
    os.close(goes_on)
    return {"child": ends.reap(child), "peer": ends.reap(peer_pid)}


def in_a_child(body):
    """`body(sock, ask)` in a fork child, which has no bells but those on the carrier; `ask()` makes the peer send a hundred
    bytes a moment later."""
    go_on, goes_on = os.pipe()

    def sender(sock):
        os.close(goes_on)
        while os.read(go_on, 1):
            ends.settle()
            sock.sendall(b"x" * 100)

    sock, peer_pid = pair(sender)
    os.close(go_on)
    child = os.fork()
    if child == 0:
        os._exit(body(sock, lambda: os.write(goes_on, b"x")))
    sock.close()
    os.close(goes_on)
    return {"child": ends.reap(child), "peer": ends.reap(peer_pid)}


@scenario
def left_by_a_call(mode):
    """A blocking call is woken by a bell that no set will be told of, and leaves most of the message: a wait finds it."""

    def body(sock, ask):
        bits = select.EPOLLIN | (select.EPOLLET if mode == "edge" else 0)
        poller = select.epoll()
        poller.register(sock, bits)
        code = 0
        for _ in range(ROUNDS):
            poller.poll(0)  # nothing: the connection is armed
            ask()
            code |= len(sock.recv(4)) != 4
            code |= 2 * ([event for _, event in poller.poll(ends.PATIENCE_S)] != [select.EPOLLIN])
            code |= 4 * (len(ends.exactly(sock, 96)) != 96)
        return code

    return in_a_child(body)


@scenario
def left_beside_a_poll():
    """The same where another thread is asleep in `poll` meanwhile, whose bell it was as well."""

    def body(sock, ask):
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        told = []
        code = 0
        for _ in range(4 * ROUNDS):
            thread = threading.Thread(target=lambda: told.append(bool(poller.poll(1000 * ends.PATIENCE_S))))
            thread.start()
            ask()
            code |= len(sock.recv(4)) != 4
            thread.join()
            code |= 2 * (len(ends.exactly(sock, 96)) != 96)
        return code | 4 * (not all(told))

    return in_a_child(body)


if __name__ == "__main__":
    sys.exit(main(TABLE))
