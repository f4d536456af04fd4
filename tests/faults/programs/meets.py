"""Servers of several kinds, and clients that ask each over several connections.

    meets.py serve KIND PORT     KIND: threads, forks (a child for each connection), workers (children that accept),
                                 handed (a program for each connection, which is handed it), listener (a program
                                 that was handed the listener)
    meets.py ask HOST PORT CONNECTIONS MS   on each something is said now and then for so long
    meets.py echo                the program that was handed a connection
    meets.py accept              the program that was handed a listener
"""

import itertools
import os
import signal
import socket
import sys
import threading
import time

WORKERS = 4
# The number of what a program is handed: standard descriptors stay on TCP.
HANDED = 9


def echo(sock):
    while data := sock.recv(4096):
        sock.sendall(data)
    sock.close()


def threads(listener):
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()


def forks(listener):
    while True:
        sock, _ = listener.accept()
        if not os.fork():
            listener.close()
            echo(sock)
            sys.exit()
        sock.close()


def workers(listener):
    for _ in range(WORKERS):
        if not os.fork():
            threads(listener)
    signal.pause()


def handed(listener):
    while True:
        sock, _ = listener.accept()
        if not os.fork():
            os.dup2(sock.fileno(), HANDED)
            os.execv(sys.executable, [sys.executable, __file__, "echo"])
        sock.close()


def listener(listener):
    os.dup2(listener.fileno(), HANDED)
    os.execv(sys.executable, [sys.executable, __file__, "accept"])


def now_and_then(ms):
    end = time.monotonic() + ms / 1000
    for turn in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        yield turn
        time.sleep(0.005)


def ask_one(host, port, turns):
    sock = socket.create_connection((host, port))
    for turn in turns:
        sock.sendall(b"%64d" % turn)
        answer = b""
        while len(answer) < 64:
            answer += sock.recv(64 - len(answer))
        assert int(answer) == turn
    sock.close()


def main():
    name, *words = sys.argv[1:]
    if name == "serve":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        kind, port = words
        globals()[kind](socket.create_server(("", int(port)), backlog=64))
    elif name == "echo":
        echo(socket.socket(fileno=HANDED))
    elif name == "accept":
        threads(socket.socket(fileno=HANDED))
    else:
        host, port, connections, ms = words
        asking = [threading.Thread(target=ask_one, args=(host, int(port), now_and_then(int(ms)))) for _ in range(int(connections))]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()


main()
