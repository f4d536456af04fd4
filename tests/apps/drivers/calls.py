"""Every call of the socket module that moves payload. usage: calls.py server|client PORT

The client leads, the server follows; each prints what its calls returned.
"""

import array
import errno
import fcntl
import os
import select
import socket
import sys
import tempfile
import termios

MIB = 1 << 20


def exactly(s, length):
    """Reads so many bytes."""
    return s.recv(length, socket.MSG_WAITALL)


def warm(s, leads):
    """Enough calls that the connection is no longer young."""
    for i in range(40):
        message = b"%04d" % i
        if leads:
            s.sendall(message)
        assert exactly(s, 4) == message
        if not leads:
            s.sendall(message)


def ready(s, events=select.POLLIN):
    """What poll says, after waiting at most 10 s."""
    poll = select.poll()
    poll.register(s, events)
    return [event for _, event in poll.poll(10_000)]


def unread(s):
    """FIONREAD."""
    value = array.array("i", [0])
    fcntl.ioctl(s, termios.FIONREAD, value)
    return value[0]


def server(port):
    """Follows."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        s, _ = listener.accept()
        control, _ = listener.accept()
    warm(s, False)
    print("poll", ready(s))
    first = s.recv(4, socket.MSG_PEEK)
    print("peek", first, s.recv(100))
    s.sendall(b"a")
    print("waitall", exactly(s, 30))
    s.sendall(b"b")
    buffers = [bytearray(3), bytearray(5), bytearray(100)]
    got = s.recvmsg_into(buffers)[0]
    print("recvmsg_into", got, buffers[0], buffers[1], bytes(buffers[2][:4]))
    s.sendall(b"c")
    into = bytearray(10)
    assert ready(s)
    print("recv_into", s.recv_into(into, 6), into)
    print("unread", unread(s), s.recv(100))
    s.sendall(b"d")
    s.settimeout(0.05)
    try:
        s.recv(1)
    except TimeoutError as e:
        print("timeout", e)
    s.setblocking(False)
    try:
        s.recv(1)
    except BlockingIOError as e:
        print("not blocking", errno.errorcode[e.errno])
    s.setblocking(True)
    s.sendall(b"e")
    print("readv", ready(s) and readv(s))
    s.sendall(b"f")
    body = b""
    while len(body) < 3 * MIB:
        body += s.recv(65536)
    print("sendfile", len(body), body == page(3 * MIB))
    s.sendall(b"g")
    # The client now sends without reading: fill what fits, then let it read.
    s.setblocking(False)
    sent = 0
    pattern = page(65536)
    while True:
        try:
            sent += s.send(pattern[sent % 65536:])
        except BlockingIOError:
            break
    control.sendall(b"full")
    s.setblocking(True)
    rest = -sent % 65536
    s.sendall(pattern[65536 - rest:] if rest else b"")
    s.shutdown(socket.SHUT_WR)
    print("end", s.recv(10), ready(s, select.POLLIN | select.POLLRDHUP) != [])
    s.close()


def page(length):
    """Bytes with their position in them."""
    return b"".join(b"%015d\n" % i for i in range(length // 16))


def readv(s):
    """os.readv on the socket's number."""
    buffers = [bytearray(2), bytearray(2)]
    return os.readv(s.fileno(), buffers), buffers


def client(port):
    """Leads."""
    s = socket.create_connection(("127.0.0.1", port))
    control = socket.create_connection(("127.0.0.1", port))
    warm(s, True)
    s.sendall(b"peeked")
    assert exactly(s, 1) == b"a"
    for part in (b"0123456789", b"0123456789", b"0123456789"):
        s.send(part)
    assert exactly(s, 1) == b"b"
    print("sendmsg", s.sendmsg([b"one", b"", b"three", b"four"]))
    assert exactly(s, 1) == b"c"
    s.sendall(b"into six and more")
    assert exactly(s, 1) == b"d"
    assert exactly(s, 1) == b"e"
    print("writev", os.writev(s.fileno(), [b"ab", b"cd"]))
    assert exactly(s, 1) == b"f"
    with tempfile.TemporaryFile() as file:
        file.write(page(3 * MIB))
        file.seek(0)
        print("sendfile", s.sendfile(file))
    assert exactly(s, 1) == b"g"
    assert exactly(control, 4) == b"full"
    total = 0
    good = True
    pattern = page(65536)
    pending = b""
    while part := s.recv(100_000):
        total += len(part)
        pending += part
        while len(pending) >= 65536:
            good &= pending[:65536] == pattern
            pending = pending[65536:]
    print("received whole pages", total % 65536 == 0, good, len(pending))
    print("error", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), s.getpeername()[1] == port)
    s.close()


{"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]))
