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
# More than may wait for a process's bell at the same time.
SLEEPERS = 17


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


def slow_sender():
    """A connection, a function that makes its peer send a hundred bytes a moment later, and one that ends the peer."""
    go_on, goes_on = os.pipe()

    def sender(sock):
        os.close(goes_on)
        while os.read(go_on, 1):
            ends.settle()
            sock.sendall(b"x" * 100)

    sock, peer_pid = pair(sender)
    os.close(go_on)

    def end():
        sock.close()
        os.close(goes_on)
        return ends.reap(peer_pid)

    return sock, lambda: os.write(goes_on, b"x"), end


def in_a_child(body):
    """`body(sock, ask)` in a fork child, which has no bells but those on the carrier."""
    sock, ask, end = slow_sender()
    child = os.fork()
    if child == 0:
        ends.settle()  # until the parent has let go
        os._exit(body(sock, ask))
    return {"peer": end(), "child": ends.reap(child)}


@scenario
def left_by_a_call(mode):
    """A blocking call is woken by a bell that no set will be told of, and leaves most of the message: a wait finds it."""

    def body(sock, ask):
        waiter = ends.Waiter(sock, mode)
        code = 0
        for _ in range(ROUNDS):
            waiter.wait(0)  # nothing: the connection is armed
            ask()
            code |= len(sock.recv(4)) != 4
            code |= 2 * (not waiter.wait(ends.PATIENCE_S))
            code |= 4 * (len(ends.exactly(sock, 96)) != 96)
        return code

    return in_a_child(body)


def beside_a_wait(how):
    """The same where another thread is asleep in the wait meanwhile, whose bell it was as well."""

    def body(sock, ask):
        waiter = ends.Waiter(sock, how)
        told = []
        code = 0
        for _ in range(4 * ROUNDS):
            thread = threading.Thread(target=lambda: told.append(waiter.wait(ends.PATIENCE_S)))
            thread.start()
            ask()
            code |= len(sock.recv(4)) != 4
            thread.join()
            code |= 2 * (len(ends.exactly(sock, 96)) != 96)
        return code | 4 * (not all(told))

    return body


@scenario
def left_beside_a_wait(how):
    """In a fork child."""
    return in_a_child(beside_a_wait(how))


@scenario
def left_beside_sleepers(how):
    """In a process with so many threads asleep that one more is woken by the carrier."""
    others = [pair(ends.echo)[0] for _ in range(SLEEPERS)]
    threads = [threading.Thread(target=other.recv, args=(1,), daemon=True) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        ends.until_asleep(os.getpid(), thread.native_id)
    sock, ask, end = slow_sender()
    code = beside_a_wait(how)(sock, ask)
    for other in others:
        other.shutdown(ends.socket.SHUT_RDWR)
    return {"code": code, "peer": end()}


if __name__ == "__main__":
    sys.exit(main(TABLE))
