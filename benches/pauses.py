#!/usr/bin/env python3
"""The longest pause of a stream between two hosts when its queue pair goes away.

The server sends a small message each few milliseconds, the client reads them and compares their numbers. When the stream
has a queue pair, one of these happens, and the longest time between two messages is taken, from then until the stream
has gone on for three seconds:

    nothing    the floor: what the load of the machine and the program do by themselves
    reader     the reader's device is taken away
    sender     the sender's
    broken     both queue pairs fail

The hosts are network namespaces of this machine with the stand-in for RDMA devices: what is measured is the library
and TCP, not a card's way to report.

    benches/pauses.py [--plays N] [--events NAME ...] [--json]
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORT = 7310
PACE_S, AFTER_S, LIMIT_S = 0.004, 3, 200
SIZE = 256
# Words of the stand-in's tool.
EVENTS = {"nothing": (), "reader": ("remove", "1"), "sender": ("remove", "0"), "broken": ("break",)}


def serve():
    """Numbers, at a pace, until the reader has gone."""
    listener = socket.create_server(("0.0.0.0", PORT))
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = 0
        try:
            while True:
                connection.sendall(struct.pack("!Q", number) * (SIZE // 8))
                number += 1
                time.sleep(PACE_S)
        except OSError:
            connection.close()


def read(address, mark):
    """Prints the longest pause, in milliseconds, since there is a file."""
    connection = socket.create_connection((address, PORT))
    end = time.monotonic() + LIMIT_S
    last, longest, since, number = time.monotonic(), 0, None, 0
    while time.monotonic() < end and (since is None or time.monotonic() - since < AFTER_S + longest):
        data = b""
        while len(data) < SIZE:
            part = connection.recv(SIZE - len(data))
            assert part, "the stream ended"
            data += part
        assert data == struct.pack("!Q", number) * (SIZE // 8), number
        number += 1
        now = time.monotonic()
        if since is not None:
            longest = max(longest, now - last)
        elif os.path.exists(mark):
            since = now
        last = now
    print(longest * 1000)


def play(event):
    """One stream, and what happens to it."""
    from faults.test_verbs import ADDRESSES, Hosts, build

    hosts = Hosts()
    program = Path(build().name) / "pauses.py"
    shutil.copy2(Path(__file__).resolve(), program)
    program.chmod(0o755)
    try:
        mark = hosts.path / "mark"
        hosts.start(0, "server", "serve", program=ROOT / "tests" / "pauses.py")
        wait = f"until ss -Hltn sport = :{PORT} | grep -q .; do sleep 0.02; done"
        subprocess.run(hosts.inside(0, "sh", "-c", wait), check=True, timeout=LIMIT_S)
        reader = hosts.start(1, "client", "read", ADDRESSES[0], mark, program=ROOT / "tests" / "pauses.py")
        hosts.wait(lambda live: live["qps"] == 2)
        time.sleep(1)
        mark.touch()
        time.sleep(0.1)
        if EVENTS[event]:
            hosts.network(*EVENTS[event])
        out, err = reader.communicate(timeout=LIMIT_S)
        assert reader.returncode == 0, err
        return float(out)
    finally:
        hosts.close()


def main():
    if sys.argv[1:2] == ["serve"]:
        return serve()
    if sys.argv[1:2] == ["read"]:
        return read(*sys.argv[2:4])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plays", type=int, default=10)
    parser.add_argument("--events", nargs="+", choices=EVENTS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    events = options.events or list(EVENTS)
    found = {event: [] for event in events}
    # One after the other, so that what else the machine does meets all of them.
    for _ in range(options.plays):
        for event in events:
            found[event].append(play(event))
            print(f"{event:8} {found[event][-1]:7.0f} ms", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(found))
        return None
    print("| event | plays | median, ms | least | most |\n|---|---:|---:|---:|---:|")
    for event, times in found.items():
        print(f"| {event} | {len(times)} | {statistics.median(times):.0f} | {min(times):.0f} | {max(times):.0f} |")
    return None


if __name__ == "__main__":
    sys.exit(main())
