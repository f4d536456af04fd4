#!/usr/bin/env python3
"""What a message costs between two machines: packets, posts and system calls, over TCP, SDP and rsockets.

Two guests with soft-RoCE devices run one program (`tests/machines/programs/counted.c`) over each transport in turn: requests
and answers of 64 bytes, where each answer is there when it is asked for, and writes of 64 KiB one way. Counted between two
moments of a connection that has met: packets by the firewall of the client's machine, posts (each is a write to the
device on soft-RoCE) and system calls of the client by strace. Nothing is timed: an emulated machine has no times. On a
busy machine a guest may stand still for longer than a queue pair's retries last, which then ends: a row of SDP
with packets of TCP is void.

    benches/messages.py [--json]
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from machines.guest import Pair  # noqa: E402
from machines.kernel import prepare  # noqa: E402
from machines.wire import COUNTERS  # noqa: E402

RSOCKETS = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
SDP = ROOT / "target" / "release" / "sdp"
TRANSPORTS = {
    "TCP": "env",
    "SDP": f"{SDP} run --no-config --set fabrics=shm,verbs --",
    "rsockets": f"env LD_PRELOAD={RSOCKETS}",
}
WARM = 400
# Name, what is counted, how often, bytes, and microseconds that an answer has to come.
LOADS = {"64 B request and answer": ("requests", 100, 64, 5000), "64 KiB write": ("bulk", 32, 65536, 0)}
# A command of the device file, by its first byte as strace shows it.
POST_SEND, ARM = r'"\34\0\0\0', r'"\27\0\0\0'
FLOW = "packets rdma_out rdma_in tcp_out tcp_in posts arms calls".split()


class Bench:
    """A pair of guests and the program."""

    def __init__(self, pair, program):
        self.pair, self.program, self.port = pair, program, 7200

    def client(self, how, words, nap_us, before=""):
        """Starts both ends; the client's command, which stands at its first word."""
        self.port += 1
        prefix = f"export COUNTED_NAP_US={nap_us}; "
        command = f"{TRANSPORTS[how]} {self.program} serve {self.pair.a.address} {self.port}"
        server = self.pair.a.start(prefix + command)
        self.pair.a.run("sleep 2") if how == "rsockets" else self.pair.a.wait_listening(self.port)
        where = f"ask {self.pair.a.address} {self.port} {' '.join(map(str, words))}"
        self.pair.b.run("rm -f /tmp/go; mkfifo /tmp/go")
        client = self.pair.b.start(f"{prefix}{before % TRANSPORTS[how]} {self.program} {where} 0<>/tmp/go")
        return server, client

    def word(self, client, word):
        """Waits for a word of the client's."""
        out = client.file("out")
        has_said = lambda: out.exists() and word in out.read_text().split()
        self.pair.b.wait_for(lambda: has_said() or client.file("status").exists(), 120, word)
        assert has_said(), client.wait()

    def go_on(self):
        self.pair.b.run("echo >/tmp/go")

    def count(self, how, load):
        """Packets, posts and calls of one load."""
        kind, count, size, nap_us = LOADS[load]
        trace = "strace -f -y -s 8 -o /tmp/trace %s"
        server, client = self.client(how, (kind, WARM, count, size), nap_us, trace)
        self.word(client, "ready")
        self.pair.b.run("nft reset counters >/dev/null")
        self.go_on()
        self.word(client, "done")
        self.pair.b.run("sleep 1")
        form = json.loads(self.pair.b.run("nft -j reset counters").out)
        self.go_on()
        server.wait(), client.wait()
        found = {c["counter"]["name"]: c["counter"]["packets"] for c in form["nftables"] if "counter" in c}
        lines = self.pair.b.run("cat /tmp/trace").text.splitlines()
        first = next(i for i, line in enumerate(lines) if '"ready\\n"' in line)
        last = next(i for i, line in enumerate(lines) if '"done\\n"' in line)
        pid = lines[first].split()[0]
        window = [line for line in lines[first + 2:last] if line.split()[0] == pid and "resumed>" not in line]
        # The program's rests; and the emulated machine's clock, which asks the kernel.
        window = [line for line in window if not re.search(r" clock_(nanosleep|gettime)\(", line)]
        found["packets"] = sum(found.values())
        found["posts"] = sum("uverbs" in line and POST_SEND in line for line in window)
        found["arms"] = sum("uverbs" in line and ARM in line for line in window)
        # On soft-RoCE the device's own doorbell is a system call, where a card has a store.
        found["calls"] = len(window) - found["posts"]
        return {name: found[name] / count for name in FLOW}



def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    program = ROOT / "target" / "faults" / "counted"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O2", ROOT / "tests/machines/programs/counted.c", "-o", program], check=True)
    pair = Pair(prepare())
    try:
        pair.wait_up()
        pair.b.run(f"nft '{COUNTERS}'")
        bench = Bench(pair, program)
        table = {}
        for load in LOADS:
            for how in TRANSPORTS:
                row = bench.count(how, load)
                table[f"{load}, {how}"] = row
                print(json.dumps({f"{load}, {how}": row}), flush=True)
    finally:
        pair.close()
    if not options.json:
        print("| |" + "|".join(FLOW) + "|\n|---|" + "---:|" * len(FLOW))
        for name, row in table.items():
            print(f"| {name} | " + " | ".join(f"{row[n]:.4g}" for n in FLOW) + " |")


if __name__ == "__main__":
    main()
