"""One end of an exchange whose other end falls silent for good.

    survivor.py serve PORT
    survivor.py ask ADDRESS PORT HOW FILE

The server echoes. When there is FILE.met, the client makes FILE. HOW `talk`: it goes on sending and receiving, and
TCP_USER_TIMEOUT bounds how long the other end may be silent; it does not wait long for an answer before it sends again, since
what it sent may have been acknowledged. HOW `listen`: it waits for the other end, with TCP's keepalive.
It prints what ended that, how often it was on a CPU meanwhile and how long, as JSON, closes the connection, makes
FILE.closed and waits until FILE is gone.
"""

import json
import os
import resource
import select
import socket
import sys
import time

LIMIT_S = 60
MEET_LIMIT_S = 200
AGAIN_S = 0.5


def serve(port):
    listener = socket.create_server(("0.0.0.0", port))
    while True:
        connection, _ = listener.accept()
        try:
            while part := connection.recv(65536):
                connection.sendall(part)
        except OSError:
            pass
        connection.close()


def exchange(connection, data, again_s=None):
    """Sends, and receives as much; with `again_s` it sends once more each time that nothing comes for so long."""
    connection.sendall(data)
    got, size = 0, len(data)
    while got < size:
        if again_s and not select.select([connection], [], [], again_s)[0]:
            connection.sendall(data)
            size += len(data)
            continue
        part = connection.recv(65536)
        if not part:
            raise EOFError
        got += len(part)


def ask(address, port, how, file):
    connection = socket.create_connection((address, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000)
    if how == "listen":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    end = time.monotonic() + MEET_LIMIT_S
    while not os.path.exists(file + ".met") and time.monotonic() < end:
        exchange(connection, b"x" * 700)
    open(file, "w").close()
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.monotonic()
    try:
        if how == "listen":
            connection.recv(1)
        while how == "talk" and time.monotonic() - began < LIMIT_S:
            exchange(connection, b"y" * 700, AGAIN_S)
            before = resource.getrusage(resource.RUSAGE_SELF)
            began = time.monotonic()
        ended = None
    except (OSError, EOFError) as error:
        ended = getattr(error, "errno", None) or repr(error)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    waited = time.monotonic() - began
    connection.close()
    print(json.dumps({"ended": ended, "waited": waited, "cpu": cpu, "slept": after.ru_nvcsw - before.ru_nvcsw}), flush=True)
    open(file + ".closed", "w").close()
    end = time.monotonic() + LIMIT_S
    # What is left of a queue pair goes with the next wait.
    while os.path.exists(file) and time.monotonic() < end:
        select.poll().poll(20)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    ask(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
