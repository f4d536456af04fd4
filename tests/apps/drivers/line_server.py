"""Speaks by lines with one client, then sends a lot and reads to the end. usage: line_server.py PORT"""

import hashlib
import socket
import sys

with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    s, _ = listener.accept()
for i in range(60):
    s.sendall(b"line %d\n" % i)
    answer = b""
    while not answer.endswith(b"\n"):
        answer += s.recv(100)
    assert answer == b"ack line %d\n" % i, answer
s.sendall(b"".join(b"tail %d of many\n" % i for i in range(100_000)))
s.shutdown(socket.SHUT_WR)
rest = b""
while part := s.recv(10_000):
    rest += part
print("received", len(rest), hashlib.sha256(rest).hexdigest())
