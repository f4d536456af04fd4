"""A server that gives each message back, and a client that holds what it gets against what it sent.

Usage: across.py serve ADDRESS PORT blocking|late|epoll|fork CONNECTIONS | across.py ask ADDRESS PORT MESSAGES SIZE
       across.py relay ADDRESS PORT TO TO-PORT | across.py last ADDRESS PORT SIZE | across.py often ADDRESS PORT CONNECTIONS
       across.py late ADDRESS PORT waits|zerocopy|timestamps | across.py leave ADDRESS PORT exit|exec
       across.py cut ADDRESS PORT MESSAGES | across.py stream ADDRESS PORT blocking|epoll
       across.py flow ADDRESS PORT blocking|epoll | across.py leaves ADDRESS PORT SIZE | across.py rest ADDRESS PORT SIZE
       across.py hands ADDRESS PORT SIZE | across.py reads NUMBER SIZE | across.py gives ADDRESS PORT SIZE
A message is its length in four bytes, and bytes that its number chooses. A late server accepts when the file `go` is there. The server ends after so many connections.
"""

import ctypes
import hashlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import time


def content(number, size):
    """The bytes of a message."""
    piece = hashlib.sha256(b"%d" % number).digest()
    return (piece * (size // len(piece) + 1))[:size]


def exactly(sock, count):
    """So many bytes; fewer at the end of the stream."""
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 18))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def family(address):
    """That of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def answer(sock):
    """Gives each message back."""
    while head := exactly(sock, 4):
        (size,) = struct.unpack(">I", head)
        sock.sendall(head + exactly(sock, size))
    sock.close()


def by_epoll(listener, connections):
    """The same for all connections from one thread that never blocks in a call but `epoll_wait`."""
    ready = select.epoll()
    listener.setblocking(False)
    ready.register(listener, select.EPOLLIN)
    socks, unsent = {}, {}
    while connections:
        for number, events in ready.poll():
            if number == listener.fileno():
                sock = listener.accept()[0]
                sock.setblocking(False)
                socks[sock.fileno()], unsent[sock.fileno()] = sock, b""
                ready.register(sock, select.EPOLLIN)
                continue
            assert not events & select.EPOLLERR, "an error that nobody made"
            sock = socks[number]
            if events & select.EPOLLIN:
                try:
                    part = sock.recv(1 << 16)
                except BlockingIOError:
                    part = None
                if part == b"":
                    ready.unregister(sock)
                    sock.close()
                    del socks[number]
                    connections -= 1
                    continue
                unsent[number] += part or b""
            if unsent[number]:
                try:
                    unsent[number] = unsent[number][sock.send(unsent[number]):]
                except BlockingIOError:
                    pass
            ready.modify(sock, select.EPOLLIN | (select.EPOLLOUT if unsent[number] else 0))


def serve(address, port, how, connections):
    """A server for so many connections."""
    listener = socket.create_server((address, int(port)), family=family(address),
                                    dualstack_ipv6=family(address) == socket.AF_INET6)
    if how == "epoll":
        return by_epoll(listener, int(connections))
    while how == "late" and not os.path.exists("go"):
        time.sleep(0.01)
    left = []
    for _ in range(int(connections)):
        sock = listener.accept()[0]
        if how == "fork":
            pid = os.fork()
            if pid == 0:
                listener.close()
                answer(sock)
                os._exit(0)
            sock.close()
            left.append(pid)
        else:
            left.append(threading.Thread(target=answer, args=(sock,)))
            left[-1].start()
    for one in left:
        if how == "fork":
            assert os.waitpid(one, 0)[1] == 0
        else:
            one.join()


def ask(address, port, messages, size):
    """A client: each message comes back as it was."""
    with socket.create_connection((address, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(int(messages)):
            message = struct.pack(">I", int(size)) + content(number, int(size))
            sock.sendall(message)
            assert exactly(sock, len(message)) == message, f"message {number} came back changed"
    print("well")


def asks(address, port, messages, size):
    """[`ask`] whose first messages are sent at once, before the other end takes the connection."""
    early = 10
    with socket.create_connection((address, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = [struct.pack(">I", int(size)) + content(number, int(size)) for number in range(int(messages))]
        for message in sent[:early]:
            sock.sendall(message)
        for number, message in enumerate(sent):
            assert exactly(sock, len(message)) == message, f"message {number} came back changed"
            if number + early < len(sent):
                sock.sendall(sent[number + early])
    print("well")


def last(address, port, size):
    """A client whose server is killed: it gets the messages back that were answered, and then the end of the stream, or a reset."""
    with socket.create_connection((address, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(1000):
            message = struct.pack(">I", int(size)) + content(number, int(size))
            sock.sendall(message)
            assert exactly(sock, len(message)) == message, f"message {number} came back changed"
        print("met", flush=True)
        try:
            assert exactly(sock, 1) == b""
        except ConnectionResetError:
            pass
    print("ended")


# Messages by which ends meet, and move most of what they move by their lane.
WARM_UP = 1500


def leaves(address, port, size):
    """A server that gives some messages back, sends so many bytes that nobody reads yet, and kills itself when the file `go` is there."""
    with socket.create_server((address, int(port))) as listener:
        sock = listener.accept()[0]
    for _ in range(WARM_UP):
        sock.sendall(exactly(sock, 1000))
    sock.sendall(content(7, int(size)))
    print("sent", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def warm_up(sock):
    """Messages that come back, in which the two ends meet."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for number in range(WARM_UP):
        sock.sendall(content(number, 1000))
        assert exactly(sock, 1000) == content(number, 1000), f"message {number} came back changed"


def rest(address, port, size):
    """Its client, which reads them when it has been killed, and then the end of the stream, or a reset."""
    with socket.create_connection((address, int(port))) as sock:
        warm_up(sock)
        while not os.path.exists("killed"):
            time.sleep(0.01)
        assert exactly(sock, int(size)) == content(7, int(size)), "bytes are missing, or changed"
        try:
            assert exactly(sock, 1) == b""
        except ConnectionResetError:
            pass
    print("ended")


def hands(address, port, size):
    """A server that executes another image when so many bytes are unread."""
    with socket.create_server((address, int(port))) as listener:
        sock = listener.accept()[0]
    for _ in range(WARM_UP):
        sock.sendall(exactly(sock, 1000))
    while not os.path.exists("go"):
        time.sleep(0.01)
    sock.set_inheritable(True)
    os.execv(sys.executable, [sys.executable, __file__, "reads", str(sock.fileno()), size])


def reads(number, size):
    """That image: the bytes, an answer, and whose they are by the kernel's word."""
    sock = socket.socket(fileno=int(number))
    assert exactly(sock, int(size)) == content(7, int(size)), "bytes are missing, or changed"
    sock.sendall(b".")
    print("from", sock.getpeername()[1])


def gives(address, port, size):
    """Its client."""
    with socket.create_connection((address, int(port))) as sock:
        warm_up(sock)
        sock.sendall(content(7, int(size)))
        print("sent from", sock.getsockname()[1], flush=True)
        assert exactly(sock, 1) == b"."


PIECES, PIECE = 1000, 4096


def pour(sock, pace, how):
    """Sends pieces in one direction, each when the one before has been received."""
    sock.setblocking(how == "blocking")
    ready = select.poll()
    ready.register(sock, select.POLLOUT)
    for number in range(PIECES):
        piece = content(number, PIECE)
        while piece:
            try:
                piece = piece[sock.send(piece):]
            except BlockingIOError:
                ready.poll()
        assert exactly(pace, 1)


def drain(sock, pace, how):
    """Gets them all, and says so of each by another connection."""
    sock.setblocking(how == "blocking")
    ready = select.epoll()
    ready.register(sock, select.EPOLLIN | select.EPOLLET)
    for number in range(PIECES):
        piece = b""
        while len(piece) < PIECE:
            try:
                part = sock.recv(PIECE - len(piece))
            except BlockingIOError:
                ready.poll()
                continue
            assert part, "an end that nobody made"
            piece += part
        assert piece == content(number, PIECE), number
        pace.sendall(b".")


def stream(address, port, how):
    """A server of one connection whose bytes come, and none go."""
    with socket.create_server((address, int(port)), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        sock, pace = listener.accept()[0], listener.accept()[0]
    drain(sock, pace, how)


def flow(address, port, how):
    """Its client."""
    with socket.create_connection((address, int(port))) as sock, socket.create_connection((address, int(port))) as pace:
        pour(sock, pace, how)


def cut(address, port, messages):
    """A client that sends some messages at once, and then each when one has come back, until its connection is reset."""
    with socket.create_connection((address, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            message = struct.pack(">I", 100) + content(1, 100)
            for _ in range(10):
                sock.sendall(message)
            for _ in range(int(messages)):
                sock.sendall(message)
                if exactly(sock, len(message)) != message:
                    break
        except (ConnectionResetError, BrokenPipeError):
            print("reset")


def often(address, port, connections):
    """A client that makes one connection after the other, and listens as often at other ports."""
    for _ in range(int(connections)):
        with socket.create_server(("0.0.0.0", 0)):
            ask(address, port, 20, 100)


SO_ZEROCOPY, MSG_ZEROCOPY, SO_TIMESTAMPING = 60, 0x4000000, 37
# Of a packet that is handed to the device, by the system's clock; both as bits of the option.
STAMPS = 1 << 8 | 1 << 4
# Where the kernel says in a message of the error queue what it is about, and what it says.
ORIGIN, STAMP, COMPLETION = 4, 4, 5


def exchange(sock, message, flags=0):
    """A message that comes back as it was."""
    assert sock.send(message, flags) == len(message)
    assert exactly(sock, len(message)) == message


def waits(sock):
    """None of the ways to wait shows an error that nobody made, and none loses what others have."""
    number = sock.fileno()
    started = time.monotonic()
    assert select.select([sock], [], [], 0.7) == ([], [], []), "readable"
    assert time.monotonic() - started >= 0.7
    words, limit = (ctypes.c_ulong * 16)(), (ctypes.c_long * 2)(0, 10_000_000)
    words[number // 64] |= 1 << number % 64
    assert ctypes.CDLL(None).pselect(number + 1, words, None, None, limit, None) == 0, "readable"
    reader, writer = os.pipe()
    os.close(reader)
    ready = select.epoll()
    ready.register(sock, select.EPOLLIN | select.EPOLLONESHOT)
    ready.register(writer, select.EPOLLET)
    time.sleep(0.8)
    events = ready.poll(0)
    assert events == [(writer, select.EPOLLERR)], events
    os.close(writer)
    return ready


def is_ready(sock, message):
    """Each answer makes the connection readable, on whichever lane it comes."""
    for _ in range(300):
        sock.sendall(message)
        assert select.select([sock], [], []) == ([sock], [], [])
        assert exactly(sock, len(message)) == message


def is_sent_again(sock):
    """Whether the kernel has sent a packet once more: this also puts another copy of a marked one on the error queue."""
    return struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0] != 0


def late(address, port, how):
    """A client whose first packet is lost, and sent again. What it sees is Linux's."""
    with socket.create_connection((address, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("connected", flush=True)
        while not os.path.exists("lost"):
            time.sleep(0.01)
        message = struct.pack(">I", 1000) + content(1, 1000)
        sock.sendall(message)
        while not is_sent_again(sock):
            time.sleep(0.01)
        ready = waits(sock) if how == "waits" else None
        print("seen", flush=True)
        if ready:
            assert ready.poll() == [(sock.fileno(), select.EPOLLIN)]
        assert exactly(sock, len(message)) == message
        if how == "waits":
            exchange(sock, message)
            return is_ready(sock, message)
        if how == "zerocopy":
            sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMPS)
        exchange(sock, message, MSG_ZEROCOPY if how == "zerocopy" else 0)
        ready = select.poll()
        ready.register(sock, 0)
        assert ready.poll() == [(sock.fileno(), select.POLLERR)]
        _, told, _, _ = sock.recvmsg(2000, 1000, socket.MSG_ERRQUEUE)
        origins = [data[ORIGIN] for level, _, data in told if level == socket.IPPROTO_IP]
        assert origins == [COMPLETION if how == "zerocopy" else STAMP], told


def leave(address, port, how):
    """A client that leaves by an exit, or a new image, while it offers to meet."""
    sock = socket.create_connection((address, int(port)))
    message = struct.pack(">I", 100) + content(1, 100)
    for _ in range(20):
        sock.sendall(message)
        assert exactly(sock, len(message)) == message
    if how == "exec":
        os.execvp("true", ["true"])
    ctypes.CDLL(None).exit(0)


def relay(address, port, to, to_port):
    """Passes one connection's bytes on, as a proxy in user space does."""
    with socket.create_server((address, int(port)), family=family(address)) as listener:
        near = listener.accept()[0]
    with near, socket.create_connection((to, int(to_port))) as far:
        ways = {near: far, far: near}
        while ways:
            for sock in select.select(list(ways), [], [])[0]:
                part = sock.recv(1 << 16)
                if part:
                    ways[sock].sendall(part)
                else:
                    ways.pop(sock).shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
