"""What two ends cost in system calls, counted by strace: a stream of small messages, and meetings.

    cost.py stream|meetings SERVER_USER CLIENT_USER      prints the calls of each end
    cost.py stream|meetings serve|connect NUMBER         an end, which tells or is told its port by a pipe
"""

import json
import os
import pwd
import socket
import struct
import subprocess
import sys
import tempfile

MESSAGES, LENGTH = 40_000, 64
CONNECTIONS, TRIPS = 40, 6


def whole(sock, length):
    """So many bytes."""
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        assert part, "the end came early"
        data += part
    return data


def warm_up(sock, begins):
    """Round trips, in which the two ends meet."""
    for at in range(TRIPS):
        if begins:
            sock.sendall(bytes([at]))
        assert whole(sock, 1) == bytes([at])
        if not begins:
            sock.sendall(bytes([at]))


def serve(load, number):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        os.write(number, struct.pack("H", listener.getsockname()[1]))
        for _ in range(CONNECTIONS if load == "meetings" else 1):
            sock, _ = listener.accept()
            with sock:
                warm_up(sock, False)
                left = 0 if load == "meetings" else MESSAGES * LENGTH
                while left:
                    part = sock.recv(1 << 16)
                    assert part, "the end came early"
                    left -= len(part)
                sock.sendall(b"!")
                assert not sock.recv(1)


def connect(load, number):
    port = struct.unpack("H", os.read(number, 2))[0]
    for _ in range(CONNECTIONS if load == "meetings" else 1):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            warm_up(sock, True)
            for _ in range(0 if load == "meetings" else MESSAGES):
                sock.sendall(bytes(LENGTH))
            assert whole(sock, 1) == b"!"


def counted(path):
    """The calls that strace counted."""
    with open(path, encoding="utf-8") as table:
        total = [line.split() for line in table if line.rstrip().endswith(" total")]
    return int(total[-1][3])


def main():
    load, first, second = sys.argv[1:]
    if first in ("serve", "connect"):
        {"serve": serve, "connect": connect}[first](load, int(second))
        return
    told, tells = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        ends, paths = [], []
        for side, user, number in (("serve", first, tells), ("connect", second, told)):
            paths.append(f"{folder}/{side}")
            group = pwd.getpwnam(user).pw_gid
            argv = ["strace", "-f", "-c", "-o", paths[-1]]
            argv += ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
            argv += [sys.executable, "-I", "-S", __file__, load, side, str(number)]
            ends.append(subprocess.Popen(argv, pass_fds=[number], cwd="/"))
        assert [end.wait(60) for end in ends] == [0, 0]
        print(json.dumps({"calls": [counted(path) for path in paths]}))


main()
