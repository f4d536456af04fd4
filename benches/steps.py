#!/usr/bin/env python3
"""User instructions and system calls of a send and of a receive between two machines, over TCP, SDP and rsockets.

Two guests with soft-RoCE devices; the client is stepped through instruction by instruction
(`tests/machines/programs/stepped.c`) while the library's own thread and the other end run free. What is received is
there when it is asked for, and to the client the time stands still while it is stepped through. Counted
are the client's user instructions, the few of the program's own loop among them; one that repeats itself
(`rep movsb`) counts once, so a long copy costs what its bytes cost besides. A post to a soft-RoCE device is
a system call, where a card has a store: it is counted by itself. Nothing is timed. A row whose bytes the
kernel saw on another transport is void, and fails. Where a queue pair was lost, on a busy machine, what
follows does not count.

    benches/steps.py [--runs N] [--sizes N ...] [--transports NAME ...] [--json]
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from machines.guest import Pair  # noqa: E402
from machines.kernel import prepare  # noqa: E402
from machines.wire import COUNTERS, TCP_HEADER  # noqa: E402

RSOCKETS = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
LIBRARY = ROOT / "target" / "release" / "libsdp.so"
TRANSPORTS = {
    "TCP": "env LD_BIND_NOW=1",
    "rsockets": f"env LD_BIND_NOW=1 LD_PRELOAD={RSOCKETS}",
    "SDP": f"env LD_BIND_NOW=1 LD_PRELOAD={LIBRARY} LIBSDP_CONFIG_FILE= SDP_FABRICS=shm,verbs",
}
OPERATIONS = 12  # of stepped.c
# Of them, where a queue pair was lost meanwhile; and how often a row with fewer is measured again.
ENOUGH, AGAIN = 3, 6


NAMES = ("instructions", "calls", "posts", "arms", "times")


class Bench:
    """A pair of guests and the program."""

    def __init__(self, pair, program):
        self.pair, self.program, self.port = pair, program, 7300

    def carried(self):
        """Bytes of TCP's payload, at most, and of RDMA's packets, since the last time."""
        form = json.loads(self.pair.b.run("nft -j reset counters").out)
        found = {c["counter"]["name"]: c["counter"] for c in form["nftables"] if "counter" in c}
        tcp = sum(found[name]["bytes"] - TCP_HEADER * found[name]["packets"] for name in ("tcp_in", "tcp_out"))
        return tcp, found["rdma_in"]["bytes"] + found["rdma_out"]["bytes"]

    def count(self, how, size):
        """Sends and receives of one transport and size: medians over the operations, and all of them. `None`: too few."""
        self.port += 1
        server = self.pair.a.start(f"{TRANSPORTS[how]} {self.program} serve {self.pair.a.address} {self.port}")
        self.pair.a.run("sleep 2") if how == "rsockets" else self.pair.a.wait_listening(self.port)
        self.carried()
        ask = f"{self.program} ask {self.pair.a.address} {self.port} {size}"
        done = self.pair.b.run(f"{self.program} trace {TRANSPORTS[how]} {ask}", 500)
        tcp, rdma = self.carried()
        server.wait()
        rows = [[*map(int, line.split())][:4] for line in done.text.splitlines()]
        times = [int(line) for line in done.err.decode().split()]
        assert len(rows) == len(times) == 2 * OPERATIONS, done
        rows = [[*row, count] for row, count in zip(rows, times)]
        # A send without a post went by TCP: its queue pair was lost, in the operation before it or in this one.
        by_tcp = [at for at, row in enumerate(rows) if at % 2 == 0 and (row[2] > 0) == (how == "TCP")]
        rows = rows[:max(by_tcp[0] - 2, 0)] if by_tcp else rows
        moved = len(rows) * size
        assert (tcp >= moved and not rdma) if how == "TCP" else rdma >= moved, (how, tcp, rdma)
        if len(rows) < 2 * ENOUGH:
            return None
        of = lambda rows: {name: statistics.median(row[i] for row in rows) for i, name in enumerate(NAMES)} | {"all": rows}
        return {"send": of(rows[::2]), "receive": of(rows[1::2])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 16384])
    parser.add_argument("--transports", choices=TRANSPORTS, nargs="+", default=list(TRANSPORTS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    program = ROOT / "target" / "faults" / "stepped-between"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O2", ROOT / "tests/machines/programs/stepped.c", "-o", program], check=True)
    pair = Pair(prepare())
    table = {}
    try:
        pair.wait_up()
        pair.b.run(f"nft '{COUNTERS}'")
        bench = Bench(pair, program)
        for _ in range(options.runs):
            for size in options.sizes:
                for how in options.transports:
                    tries = (bench.count(how, size) for _ in range(AGAIN))
                    found = next((rows for rows in tries if rows), None)
                    assert found, f"{how}, {size} bytes: the queue pair was lost each time"
                    for what, row in found.items():
                        name = f"{what} {size}, {how}"
                        table.setdefault(name, []).append(row)
                        print(json.dumps({name: row}), flush=True)
    finally:
        pair.close()
    if not options.json:
        print("| |instructions|system calls|posts|arms|calls of the program|\n|---" + "|---:" * 5 + "|")
        for name, rows in table.items():
            best = min(rows, key=lambda row: row["instructions"])
            print(f"| {name} | " + " | ".join(f"{best[column]:g}" for column in list(best)[:-1]) + " |")


if __name__ == "__main__":
    main()
