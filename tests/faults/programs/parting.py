"""A client that parts with bytes still on their way: each connection sends 60 messages of 1 KiB and 256 KiB, and ends.

    parting.py serve PORT PLAYS FILE
    parting.py ask ADDRESS PORT PLAYS HOW [SLOWER]
    parting.py many PORT FILE
    parting.py at-once ADDRESS PORT COUNT HOW FOLDER

HOW the client parts: `close`, `shutdown` (and close), `linger` (SO_LINGER with time), `exit` and `kill` (of a process for
each connection). SLOWER: how much longer it rests between messages, on slow machines. The server reads slowly, at a pace that the number of the connection chooses, and writes a line of JSON
to FILE: for each connection how many bytes came, whether they were right, and how the stream ended.

`at-once`: so many connections of one process, which talks on each until FOLDER has `met`, says so there by `ready`, and parts from
all of them when there is `go`: by `exit`, or by `exec`. `many` is the server of that, and writes
its number to FILE.
"""

import errno
import json
import os
import signal
import socket
import struct
import sys
import threading
import time

MESSAGES, MESSAGE, LAST = 60, 1024, 256 * 1024
WHOLE = MESSAGES * MESSAGE + LAST
PATTERN = bytes(i % 251 for i in range(WHOLE + 251))
# Of the server, for each play in turn: seconds before the first read, seconds between two reads, bytes of one.
READS = (0, 0, 65536), (0.02, 0.0005, 8192), (0, 0.002, 16384), (0.1, 0, 65536), (0.005, 0.001, 4096)
# Of the client: seconds between two messages.
PACES = 0.003, 0.001, 0.005, 0.0005
# Of a process for each connection, which opens the device in the middle.
SLOW_PACES = 0.004, 0.008, 0.006


def serve(port, plays, file):
    listener = socket.create_server(("", port))
    found = []
    for play in range(plays):
        first, pause, size = READS[play % len(READS)]
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        time.sleep(first)
        got, is_right, end = 0, True, "end"
        try:
            while part := connection.recv(size):
                is_right = is_right and part == PATTERN[got % 251:][:len(part)]
                got += len(part)
                time.sleep(pause)
        except OSError as error:
            end = errno.errorcode[error.errno]
        connection.close()
        found.append({"play": play, "got": got, "right": is_right, "end": end})
    with open(file, "w", encoding="ascii") as out:
        json.dump(found, out)


def send(address, port, play, paces, slower=1):
    connection = socket.create_connection((address, port))
    for i in range(MESSAGES):
        connection.sendall(PATTERN[i * MESSAGE:][:MESSAGE])
        time.sleep(paces[play % len(paces)] * slower)
    connection.sendall(PATTERN[MESSAGES * MESSAGE:WHOLE])
    return connection


def part(connection, how):
    if how == "shutdown":
        connection.shutdown(socket.SHUT_WR)
    elif how == "linger":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    elif how == "exit":
        os._exit(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    connection.close()


def ask(address, port, plays, how, slower):
    for play in range(plays):
        if how in ("exit", "kill"):
            one = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, "one", address, str(port), str(play), how])
            assert one == (0 if how == "exit" else -signal.SIGKILL), one
        else:
            part(send(address, port, play, PACES, slower), how)


def many(port, file):
    with open(file, "w", encoding="ascii") as out:
        out.write(str(os.getpid()))
    listener = socket.create_server(("", port), backlog=128)
    kept = []
    while True:
        kept.append(listener.accept()[0])
        threading.Thread(target=lambda taken: [taken.sendall(part) for part in iter(lambda: taken.recv(65536), b"")],
                         args=kept[-1:], daemon=True).start()


def at_once(address, port, count, how, folder):
    connections = [socket.create_connection((address, port)) for _ in range(count)]
    while not os.path.exists(f"{folder}/met"):
        for connection in connections:
            connection.sendall(PATTERN[:MESSAGE])
            connection.recv(MESSAGE, socket.MSG_WAITALL)
        time.sleep(0.01)
    with open(f"{folder}/ready", "wb"):
        pass
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)
    for _ in range(20):
        for connection in connections:
            connection.sendall(PATTERN[:MESSAGE])
        time.sleep(0.05)
    if how == "exec":
        os.execv("/bin/true", ["true"])
    os._exit(0)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "serve":
        serve(int(words[0]), int(words[1]), words[2])
    elif what == "many":
        many(int(words[0]), words[1])
    elif what == "at-once":
        at_once(words[0], int(words[1]), int(words[2]), *words[3:])
    elif what == "one":
        part(send(words[0], int(words[1]), int(words[2]), SLOW_PACES), words[3])
    else:
        ask(words[0], int(words[1]), int(words[2]), words[3], float((words[4:] or ["1"])[0]))
