#!/usr/bin/env python3
"""A server that forks for each connection, one message each: connections per second with and without the library.

What the library adds to such a connection is a few hundredths of what the kernel takes for it, less than two runs of
the same program differ by. So several pairs of server and client live side by side, with and without the library, and
take turns of a few milliseconds; what is compared is what each kind took in the same turn. A third kind has a preloaded
library that only passes the calls on: what it costs to be there at all. Nothing here decides a test.

    benches/forking.py [--turns N] [--pairs N] [--connections N] [--at-once]
"""

import argparse
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack

from apps import KINDS as USERS
from apps import ROOT, SDP, Run, free_port, people, stop, wait_for_listener
from turns import interval

# Bytes of a message at most.
LENGTH = 64
# Connections that nothing is compared of: pages and caches of a new pair.
WARM_UP = 50
TCP, PASSING, LIBRARY = "TCP", "passing on", "SDP"
KINDS = (TCP, PASSING, LIBRARY)


class Pair:
    """A server and a client that does as many connections as it is told."""

    def __init__(self, program, sdp, folder, environment, ends):
        self.run = Run(sdp, folder, people.Users(USERS["one"]))
        port = free_port()
        server = self.run.start([program, "server", str(port)], env=environment)
        ends.callback(stop, server)
        wait_for_listener(port, server)
        client = subprocess.Popen(
            self.run.wrap([program, "paced", str(port), str(LENGTH)], None),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        ends.callback(stop, client)
        self.client = client
        self.seconds(WARM_UP)

    def seconds(self, connections):
        """How long one connection took, of so many one after the other."""
        self.client.stdin.write(f"{connections}\n")
        self.client.stdin.flush()
        return float(self.client.stdout.readline()) / connections


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=10, help="of each kind: where things are mapped differs")
    parser.add_argument("--connections", type=int, default=20, help="of a turn")
    parser.add_argument("--at-once", action="store_true", help="the loader binds the program when it starts")
    options = parser.parse_args()
    if not SDP.exists():
        sys.exit("build first: cargo xtask build")
    environment = dict(os.environ) | ({"LD_BIND_NOW": "1"} if options.at_once else {})
    with tempfile.TemporaryDirectory(prefix="sdp-bench-") as name:
        folder = pathlib.Path(name)
        program = str(folder / "forking")
        source = ROOT / "tests" / "apps" / "drivers" / "forking.c"
        subprocess.run(["cc", "-O2", "-o", program, source], check=True)
        passing = str(folder / "passing.so")
        source = ROOT / "benches" / "passing.c"
        subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", passing, source, "-ldl"], check=True)
        environments = {kind: environment for kind in KINDS} | {PASSING: environment | {"LD_PRELOAD": passing}}
        with ExitStack() as ends:
            pairs = {kind: [] for kind in KINDS}
            for i in range(options.pairs):
                for kind in KINDS:
                    home = folder / f"{i}-{kind}"
                    home.mkdir()
                    pairs[kind].append(Pair(program, kind == LIBRARY, home, environments[kind], ends))
            seconds = {kind: [] for kind in KINDS}
            for turn in range(options.turns):
                # Who is next to whom changes.
                for kind in random.sample(KINDS, len(KINDS)):
                    seconds[kind].append(random.choice(pairs[kind]).seconds(options.connections))
        shares = [pair.run.share() for pair in pairs[LIBRARY]]
    for kind in (LIBRARY, PASSING):
        ratio = interval([tcp / other for tcp, other in zip(seconds[TCP], seconds[kind])])
        added = interval([(other - tcp) * 1e6 for tcp, other in zip(seconds[TCP], seconds[kind])])
        print(
            f"fork for each connection, one message: TCP {1 / statistics.median(seconds[TCP]):.4g} connections/s, "
            f"{kind} {1 / statistics.median(seconds[kind]):.4g} connections/s, "
            f"ratio {ratio[0]:.3f} [{ratio[1]:.3f} - {ratio[2]:.3f}], "
            f"{added[0]:.1f} us [{added[1]:.1f} - {added[2]:.1f}] added to a connection, "
            + (f"{max(shares):.1%} of the bytes on SDP, " if kind == LIBRARY else "")
            + f"{options.turns} turns of {options.connections}"
        )


if __name__ == "__main__":
    main()
