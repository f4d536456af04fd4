#!/usr/bin/env python3
"""How much of what programs send in bulk between two machines goes over SDP, and how often a sender left it.

Two guests with soft-RoCE devices; server and client are different users. The share is that of the client's bytes behind the first
64 KiB of each connection, as the library counted them when it gave them to the queue pair; what a half that leaves its queue
pair sends a second time by TCP is at most 256 KiB for each demotion. Nothing is timed: an emulated machine has no times.

    benches/shares.py [--mib N] [--plays N] [--only WORD] [--json]
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from machines.guest import Pair  # noqa: E402
from machines.kernel import prepare  # noqa: E402
from machines.test_programs import report  # noqa: E402
from machines.wire import SETTINGS  # noqa: E402

SDP = ROOT / "target" / "release" / "sdp"
STREAMS = ROOT / "tests" / "faults" / "programs" / "streams.py"
# As for the programs of tests; `cargo xtask build` makes the library and the tools.
SERVER, CLIENT = "nobody", "games"
FIRST = 64 * 1024


def rows(mib):
    """Name, connections, the server's words and the client's; `{at}` and `{port}` are filled in."""
    total = mib << 20
    for many in 1, 2, 4, 8:
        yield (f"iperf 2, 16 KiB writes, {many}", many, "iperf -s -B {at} -p {port}",
               f"iperf -c {{at}} -p {{port}} -P {many} -n {total // many} -l 16K -y C")
    yield ("iperf 3, 128 KiB writes, 1", 1, "iperf3 -s -1 -B {at} -p {port}",
           f"iperf3 -c {{at}} -p {{port}} -n {total} -l 128K")
    for how, many in ("level,16384", 1), ("asyncio,65536", 1), ("asyncio,65536", 8):
        each = total // many
        yield (f"{how.partition(',')[0]}, never blocks, {many}", many, f"python3 {STREAMS} serve {{port}} {many} {each}",
               f"python3 {STREAMS} ask {{at}} {{port}} {many} {each} {how}")


class Bench:
    """A pair of guests."""

    def __init__(self, pair):
        self.pair, self.port = pair, 7300

    def play(self, many, server, client):
        """Share in percent, demotions, connections that met."""
        self.port += 1
        run = lambda name: shlex.join(map(str, [SDP, "run", "--no-config", *SETTINGS, "--report", f"/tmp/{name}.json", "--"]))
        self.pair.a.run("rm -f /tmp/server.json")
        self.pair.b.run("rm -f /tmp/client.json")
        where = {"at": self.pair.a.address, "port": self.port}
        serving = self.pair.a.start(f"{run('server')} {server.format(**where)}", user=SERVER)
        self.pair.a.wait_listening(self.port)
        self.pair.b.run(f"{run('client')} {client.format(**where)}", 300, user=CLIENT)
        self.pair.a.run("pkill -INT -x iperf", ok=(0, 1))
        serving.wait()
        found = report(self.pair.b, "client")
        moved = found["bytes"]
        whole = moved["sdp_sent"] + moved["tcp_sent"] - many * FIRST
        return min(100.0, 100 * moved["sdp_sent"] / whole), sum(found["demotions"].values()), found["fabrics"]["verbs"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=50, help="payload of all connections of a play, in MiB")
    parser.add_argument("--plays", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose names have this word")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pair = Pair(prepare())
    try:
        pair.wait_up()
        bench = Bench(pair)
        table = {}
        for name, many, server, client in rows(options.mib):
            if options.only in name:
                table[name] = [bench.play(many, server, client) for _ in range(options.plays)]
                print(json.dumps({name: table[name]}), flush=True)
    finally:
        pair.close()
    if not options.json:
        print("| program, connections | share % | least | demotions | met |\n|---|---:|---:|---:|---:|")
        for name, plays in table.items():
            shares, demotions, met = zip(*plays, strict=True)
            print(f"| {name} | {median(shares):.1f} | {min(shares):.1f} | {sum(demotions)} | {sum(met)} |")


if __name__ == "__main__":
    main()
