"""Talks to an echo service: messages of many sizes, then a bulk in both directions at once.

usage: echo_client.py PORT BULK_BYTES | PORT lines
"""

import hashlib
import socket
import sys
import threading


def pattern(length, seed=0):
    """Bytes that differ everywhere."""
    block = b"".join(hashlib.sha512(b"%d-%d" % (seed, i)).digest() for i in range(257))
    return (block * (length // len(block) + 1))[:length]


def exactly(s, length):
    """Reads so many bytes; an error at the end of the stream."""
    parts = []
    while length:
        part = s.recv(min(length, 65536))
        if not part:
            raise EOFError(f"{length} bytes are missing")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def echo(s, bulk):
    """Every byte comes back."""
    for i in range(100):
        message = pattern(1 + i * 37 % 3000, i)
        s.sendall(message)
        assert exactly(s, len(message)) == message, i
    print("messages ok")
    data = pattern(bulk, 7)
    sender = threading.Thread(target=s.sendall, args=(data,))
    sender.start()
    back = exactly(s, bulk)
    sender.join()
    assert back == data
    s.shutdown(socket.SHUT_WR)
    rest = s.recv(10)
    print("bulk", hashlib.sha256(back).hexdigest(), "rest", rest)


def lines(s):
    """A service that answers by lines until the end of its input."""
    for i in range(200):
        s.sendall(b"word %d\n" % i)
    s.shutdown(socket.SHUT_WR)
    answer = b""
    while part := s.recv(1000):
        answer += part
    print(answer.decode())


def main():
    """Connects and talks."""
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as s:
        s.settimeout(60)
        if sys.argv[2] == "lines":
            lines(s)
        else:
            echo(s, int(sys.argv[2]))


main()
