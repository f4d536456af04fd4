"""What telnet and xinetd do with their connections: the urgent mark in line, and a mapped socket that becomes one of IPv4."""

import array
import fcntl
import functools
import os
import select
import socket

import ends
from ends import bulk, exactly, main, pair, warm_up

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

SIOCATMARK = 0x8905
IPV6_ADDRFORM = 1
BEFORE, BEHIND = ends.stream(1, 3000), ends.stream(2, 3000)


def is_at_mark(sock):
    """`sockatmark`."""
    word = array.array("i", [7])
    fcntl.ioctl(sock, SIOCATMARK, word)
    return word[0]


def is_urgent(sock):
    """What a `poll` says of urgent data."""
    poll = select.poll()
    poll.register(sock, select.POLLPRI)
    return bool(poll.poll(0))


@scenario
def mark(size, peeks):
    """Before each receive call: whether urgent data is about, whether it is next; then how much the call got."""

    def peer(sock):
        assert sock.recv(1) == b"?"
        sock.sendall(BEFORE)
        sock.send(b"!", socket.MSG_OOB)
        sock.sendall(BEHIND)
        os.write(tell, b".")
        exactly(sock, 1)

    hear, tell = os.pipe()
    sock, child = pair(peer)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    # On the lane it stays for ordinary bytes.
    sock.sendall(b"?")
    os.read(hear, 1)
    got, steps = b"", []
    while len(got) < 6001:
        step = [is_urgent(sock), is_at_mark(sock)]
        if peeks == "peek":
            step.append(len(sock.recv(int(size), socket.MSG_PEEK)))
        data = sock.recv(int(size))
        assert data, steps
        got += data
        steps.append([*step, len(data)])
    sock.sendall(b".")
    sock.close()
    return {"fine": got == BEFORE + b"!" + BEHIND, "steps": steps, "peer": ends.reap(child)}


@scenario
def inline():
    """The option alone costs no lane, whenever it is set."""
    def peer(sock):
        warm_up(sock, True)
        ends.echo(sock)

    sock, child = pair(peer, warm=False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    warm_up(sock, False)
    fine = [bulk(sock, 300_000)]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    fine.append(bulk(sock, 300_000, 7))
    sock.close()
    return {"fine": fine, "peer": ends.reap(child)}


@scenario
def form(when):
    """A mapped socket becomes one of IPv4 before it has a lane, or on it."""
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = listener.getsockname()[1]
    child = os.fork()
    if child == 0:
        listener.close()
        sock = socket.create_connection(("127.0.0.1", port))
        warm_up(sock, True)
        ends.echo(sock)
        os._exit(0)
    sock, _ = listener.accept()
    listener.close()
    change = lambda: sock.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDRFORM, socket.AF_INET)
    if when == "young":
        change()
    warm_up(sock, False)
    fine = [bulk(sock, 100_000)]
    if when != "young":
        change()
    fine.append(bulk(sock, 100_000, 5))
    names = [sock.getsockname()[0], sock.getpeername()[0]]
    sock.close()
    return {"fine": fine, "names": names, "peer": ends.reap(child)}


if __name__ == "__main__":
    main(TABLE)
