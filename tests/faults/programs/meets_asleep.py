"""A thread waits by an epoll set for a connection that meets its other end meanwhile, because another thread sends on it.

    meets_asleep.py serve PORT WAIT         WAIT: "no", or how long each wait of that end lasts: "forever", or milliseconds
    meets_asleep.py ask HOST PORT WAIT

The end that waits sends byte by byte until the wait is over. The other takes COUNT bytes, and sends the first one of its own.
"""

import select
import socket
import sys
import threading
import time

COUNT = 200
PAUSE_S = 0.002
LIMIT_S = 20


def wait_and_send(sock, how):
    got = []

    def wait():
        own = select.epoll()
        own.register(sock, select.EPOLLIN)
        end = time.monotonic() + LIMIT_S
        # What it finds is there before the set has an event.
        while not own.poll(None if how == "forever" else float(how) / 1000) and time.monotonic() < end:
            pass
        got.append(sock.recv(1, socket.MSG_DONTWAIT))

    thread = threading.Thread(target=wait)
    thread.start()
    end = time.monotonic() + LIMIT_S
    while thread.is_alive() and time.monotonic() < end:
        sock.sendall(b"x")
        time.sleep(PAUSE_S)
    thread.join()
    assert got == [b"!"], got
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""


def take(sock):
    for _ in range(COUNT):
        assert sock.recv(1) == b"x"
    sock.sendall(b"!")
    while sock.recv(100):
        pass


if __name__ == "__main__":
    command, *words, how = sys.argv[1:]
    if command == "serve":
        sock = socket.create_server(("", int(words[0]))).accept()[0]
    else:
        sock = socket.create_connection((words[0], int(words[1])))
    take(sock) if how == "no" else wait_and_send(sock, how)
    print("every byte")
