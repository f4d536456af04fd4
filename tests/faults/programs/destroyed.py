"""A socket that is destroyed from outside (`ss -K`) while its process lives: what both ends are told."""

import functools
import json
import os
import select
import resource
import signal
import socket
import struct
import subprocess
import threading
import time

import ends
from ends import exactly, main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)


def destroy(sock):
    """Ends this socket as an administrator does."""
    here, there = sock.getsockname()[1], sock.getpeername()[1]
    which = f"sport = {here} and dport = {there}"
    done = subprocess.run(["ss", "-K", "-t", "-n", "-H", which], stdout=subprocess.PIPE, check=True)
    assert len(done.stdout.splitlines()) == 1, done.stdout
    time.sleep(0.02)


def calls(sock, order):
    """What one call after the other gives."""
    told = []
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLRDHUP)
    for what in order:
        if what == "r":
            told.append(ends.outcome(lambda: len(sock.recv(65536))))
        elif what == "w":
            told.append(ends.outcome(sock.send, b"more", socket.MSG_NOSIGNAL))
        elif what == "p":
            told.append([bits for _, bits in poll.poll(1000)])
        elif what == "e":
            told.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        elif what == "s":
            told.append(ends.outcome(sock.shutdown, socket.SHUT_WR))
        elif what == "c":
            told.append(ends.outcome(sock.close))
    return told


@scenario
def told(victim, here, there, state):
    """`victim`: whose socket it is. `here`, `there`: the calls of this end, and of the peer, in this order. `state`: quiet
    (everything was read), unread (neither end has read), asleep (the end whose socket it is not sleeps in its
    first call), gone (the victim closes before the other end looks)."""
    ours, theirs = socket.socketpair()

    def peer(sock):
        ours.close()
        theirs.recv(1)
        if state == "unread":
            sock.sendall(b"unread")
        theirs.sendall(b"x")
        while order := theirs.recv(100).decode():
            if order == "destroy":
                destroy(sock)
                answer = None
            else:
                answer = calls(sock, order)
            theirs.sendall(json.dumps(answer).encode())

    def ask(order):
        ours.sendall(order.encode())
        return lambda: json.loads(ours.recv(1000))

    sock, child = ends.pair(peer)
    theirs.close()
    if state == "unread":
        sock.sendall(b"unread")
    ours.sendall(b"x")
    ours.recv(1)
    time.sleep(0.02)
    result = {}
    if victim == "here":
        slept = ask(there) if state == "asleep" else None
        ends.until_asleep(child)
        destroy(sock)
        if state == "gone":
            calls(sock, "c")
            result["there"] = ask(there)()
        else:
            result["here"] = calls(sock, here)
            result["there"] = (slept or ask(there))()
    else:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(calls(sock, here)))
        if state == "asleep":
            thread.start()
            ends.until_asleep(os.getpid(), thread.native_id)
        ask("destroy")()
        if state == "gone":
            ask("c")()
            thread.start()
        elif state != "asleep":
            thread.start()
        thread.join()
        result["here"] = answers[0]
        if state != "gone":
            result["there"] = ask(there)()
    ours.close()
    result["child"] = ends.reap(child)
    return result


def unread_in_kernel(sock):
    """Bytes in the receive queue of the other end of a connection, as the kernel tells them."""
    local, remote = (f"{port:04X}" for port in (sock.getpeername()[1], sock.getsockname()[1]))
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table]
    for row in rows:
        if row[1].endswith(local) and row[2].endswith(remote):
            return int(row[4].partition(":")[2], 16)
    raise AssertionError(rows)


@scenario
def with_a_bell(how):
    """A wake-up byte is unread in the kernel of the other end when that ends: killed, executes something that does not
    get the connection, closes it or is destroyed while its process lives. Everything of ours was read before."""
    ours, theirs = socket.socketpair()

    def few_descriptors():
        # Nothing but bytes on the carrier wakes such a process.
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))

    def peer(sock):
        ours.close()
        # A sleep that ends in vain leaves its wish to be woken.
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20_000))
        assert ends.outcome(sock.recv, 1) == "EAGAIN"
        theirs.sendall(b"x")
        theirs.recv(1)
        assert sock.recv(4, socket.MSG_DONTWAIT) == b"last"
        theirs.sendall(b"x")
        theirs.recv(1)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "exec":
            os.execv("/bin/sleep", ["sleep", "0.5"])
        elif how == "close":
            sock.close()
        else:
            destroy(sock)
        theirs.sendall(b"x")
        theirs.recv(1)

    sock, child = ends.pair(peer, first=few_descriptors)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs.close()
    ours.recv(1)
    sock.sendall(b"last")
    ours.sendall(b"x")
    ours.recv(1)
    bells = unread_in_kernel(sock)
    ours.sendall(b"x")
    ours.recv(1)
    time.sleep(0.05)
    told = calls(sock, "rr")
    ours.close()
    ends.reap(child)
    return {"bells": bells, "told": told}


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main(TABLE)
