"""Is what epoll says true? A level-triggered server that counts reads that had nothing to read, and
waits that named one descriptor twice.

usage: readiness.py server|client PORT

TCP on one machine does neither; a program may rely on it.
"""

import select
import socket
import sys

MESSAGES = 1500
WAIT_S = 20


def server(port):
    """Reads once after each event; says how often that was in vain."""
    listener = socket.create_server(("127.0.0.1", port))
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connection = None
    messages = vain = doubled = 0
    while events := poll.poll(WAIT_S, 2):
        doubled += len(events) != len({number for number, _ in events})
        if connection is None:
            connection, _ = listener.accept()
            connection.setblocking(False)
            poll.register(connection, select.EPOLLIN)
            continue
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            vain += 1
            continue
        if not data:
            break
        messages += data.count(b"\n")
        connection.sendall(data)
    print(f"messages {messages}, readable but empty {vain}, twice in one wait {doubled}")


def client(port):
    """One message at a time."""
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.settimeout(WAIT_S)
        for i in range(MESSAGES):
            message = b"m" * (i * 37 % 3000) + b"\n"
            s.sendall(message)
            back = b""
            while len(back) < len(message):
                back += s.recv(65536)
            assert back == message


{"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]))
