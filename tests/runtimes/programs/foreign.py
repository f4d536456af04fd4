"""An echo server and its client that call `send` and `recv` by ctypes.

usage: foreign.py server|client global|file PORT
"""

import ctypes
import hashlib
import os
import signal
import socket
import sys
import threading

BULK = 4_000_000
PIECE = 60_000
SMALL_ROUNDS = 100
LIMIT_S = 80


def functions(kind):
    """`send` and `recv` that raise what the call's errno says."""
    libc = ctypes.CDLL(None if kind == "global" else "libc.so.6", use_errno=True)
    for name in ("send", "recv"):
        call = getattr(libc, name)
        call.restype = ctypes.c_ssize_t
        call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def told(result):
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def send(sock, data):
        while data:
            data = data[told(libc.send(sock.fileno(), data, len(data), 0)):]

    def recv(sock, n):
        room = ctypes.create_string_buffer(n)
        got = told(libc.recv(sock.fileno(), room, n, 0))
        return room.raw[:got]

    return send, recv


def serve(port, send, recv):
    """Echoes one connection after the other."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    while True:
        with listener.accept()[0] as sock:
            while data := recv(sock, 65536):
                send(sock, data)


def talk(port, send, recv):
    """Small messages, a bulk both ways at once, a half close."""
    signal.alarm(LIMIT_S)

    def exactly(n):
        parts = []
        while n:
            part = recv(sock, min(n, PIECE))
            assert part, n
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    with socket.create_connection(("127.0.0.1", port)) as sock:
        for i in range(SMALL_ROUNDS):
            message = hashlib.sha512(b"%d" % i).digest() * (1 + i % 20)
            send(sock, message)
            assert exactly(len(message)) == message
        data = b"".join(hashlib.sha512(b"b%d" % i).digest() for i in range(BULK // 64))
        sender = threading.Thread(target=send, args=(sock, data))
        sender.start()
        back = exactly(len(data))
        sender.join()
        sock.shutdown(socket.SHUT_WR)
        print(back == data, recv(sock, 10))
        try:
            send(sock, b"x")
        except OSError as error:
            print(error)


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
ROLE, KIND, PORT = sys.argv[1:]
(serve if ROLE == "server" else talk)(int(PORT), *functions(KIND))
