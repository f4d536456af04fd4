"""Connections whose client closes as soon as it has the last answer: the server reads the end of the stream, as over TCP.

    last_answer.py serve PORT COUNT
    last_answer.py ask HOST PORT COUNT
"""

import socket
import sys

ROUNDS = 60


def serve(port, count):
    listener = socket.create_server(("", port))
    for _ in range(count):
        sock, _ = listener.accept()
        for _ in range(ROUNDS):
            assert sock.recv(1) == b"x"
            sock.sendall(b"y")
        assert sock.recv(1) == b""
        sock.close()


def ask(host, port, count):
    for _ in range(count):
        sock = socket.create_connection((host, port))
        for _ in range(ROUNDS):
            sock.sendall(b"x")
            assert sock.recv(1) == b"y"
        sock.close()
    print("every byte")


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "serve":
        serve(*map(int, words))
    else:
        ask(words[0], *map(int, words[1:]))
