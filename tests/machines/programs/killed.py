"""A sender that is killed in the middle of its stream, and what its reader gets.

    killed.py serve PORT ENOUGH
    killed.py send ADDRESS PORT SIZE ACCEPTED

The sender asks for 200 answers, so that the ends may meet, and then sends pieces of SIZE bytes for ever;
how many bytes its calls have taken stands in the file ACCEPTED. The reader makes the file ENOUGH when
it has 300 000 bytes, and goes on to the end of the stream. Of each connection it prints how many bytes
it got and the error behind them (0: none). They are the first ones of the stream, or it fails.
"""

import mmap
import random
import socket
import struct
import sys

ROUNDS, ROUND = 200, 64
ENOUGH = 300_000
STREAM = random.Random(25).randbytes(1 << 20)


def piece(at, size):
    """So many bytes of a stream that repeats itself."""
    at %= len(STREAM)
    return (STREAM[at:] + STREAM * (size // len(STREAM) + 1))[:size]


def take(connection, size):
    while size:
        size -= len(connection.recv(size))


def serve(port, enough):
    listener = socket.create_server(("0.0.0.0", port))
    while True:
        connection, _ = listener.accept()
        for _ in range(ROUNDS):
            take(connection, ROUND)
            connection.sendall(b"a" * ROUND)
        got, error = 0, 0
        try:
            while part := connection.recv(50_000):
                assert part == piece(got, len(part)), got
                if got < ENOUGH <= got + len(part):
                    open(enough, "w").close()
                got += len(part)
        except ConnectionResetError as reset:
            error = reset.errno
        connection.close()
        print(got, error, flush=True)


def send(address, port, size, accepted):
    with open(accepted, "w+b") as file:
        file.truncate(8)
        count = mmap.mmap(file.fileno(), 8)
    connection = socket.create_connection((address, port))
    for _ in range(ROUNDS):
        connection.sendall(b"q" * ROUND)
        take(connection, ROUND)
    at = 0
    while True:
        at += connection.send(piece(at, size))
        struct.pack_into("Q", count, 0, at)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]), sys.argv[3])
else:
    send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
