#!/usr/bin/env python3
"""The batch of `benches/batch.py` between two machines: PostgreSQL on one, psql of another user on the other, over TCP and over
SDP in turn.

The machines are guests with soft-RoCE devices. Times are printed in the form of a database's batch tool, and mean nothing for
a card: the machines are emulated, and their driver does in software what a card does. What carries over is how many
round trips there were, and which packets and bytes went which way, by the second machine's kernel and by the library's counters.

    benches/batch_between.py [--turns N] [--inserts N] [--selects N]
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import batch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from machines.guest import Pair  # noqa: E402
from machines.kernel import prepare  # noqa: E402
from machines.test_programs import report  # noqa: E402
from machines.wire import COUNTERS, SETTINGS  # noqa: E402

PROGRAMS = Path("/usr/lib/postgresql/15/bin")
SDP = ROOT / "target" / "release" / "sdp"
SERVER, CLIENT = "postgres", "games"
PORTS = {False: 7110, True: 7111}


def cluster(folder):
    """Two database clusters, which are the same; what a guest writes goes to a copy of its own."""
    first = folder / "False"
    first.mkdir()
    subprocess.run(["chown", SERVER, first], check=True)
    words = ["setpriv", f"--reuid={SERVER}", f"--regid={SERVER}", "--init-groups", PROGRAMS / "initdb"]
    words += ["-D", first, "-A", "trust", "-U", SERVER, "-N", "--wal-segsize=1"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd="/")
    with open(first / "pg_hba.conf", "a", encoding="utf-8") as rules:
        rules.write("host all all samenet trust\n")
    subprocess.run(["cp", "-a", first, folder / "True"], check=True)


class Bench:
    """Two guests, two servers."""

    def __init__(self, pair, folder, options):
        self.pair, self.folder, self.options, self.servers = pair, folder, options, {}
        pair.b.run(f"nft {shlex.quote(COUNTERS)}")
        for sdp, port in PORTS.items():
            words = [PROGRAMS / "postgres", "-D", folder / str(sdp), "-p", port, "-k", "/tmp"]
            settings = (f"listen_addresses={pair.a.address}", "fsync=off", "max_connections=10", "shared_buffers=8MB",
                        "autovacuum=off")
            words += [word for setting in settings for word in ("-c", setting)]
            self.servers[sdp] = pair.a.start(self.command(sdp, "server", words), user=SERVER)
            pair.a.wait_listening(port)

    def command(self, sdp, name, words):
        run = [SDP, "run", "--no-config", *SETTINGS, "--report", f"/tmp/{name}.json", "--"] if sdp else []
        return shlex.join(map(str, [*run, *words]))

    def play(self, sdp):
        """One batch: its times, what the client's report says, and what its machine's kernel saw."""
        self.pair.b.run("nft reset counters >/dev/null; rm -f /tmp/client.json")
        words = [PROGRAMS / "psql", "-h", self.pair.a.address, "-p", PORTS[sdp], "-U", SERVER, "-X", "-q"]
        done = self.pair.b.run(self.command(sdp, "client", [*words, "-f", self.folder / "batch.sql", "postgres"]), 300,
                               user=CLIENT)
        form = json.loads(self.pair.b.run("nft -j reset counters").out)
        seen = {c["counter"]["name"]: c["counter"] for c in form["nftables"] if "counter" in c}
        kernel = {lane: [sum(seen[f"{lane}_{way}"][what] for way in ("in", "out")) for what in ("packets", "bytes")]
                  for lane in ("tcp", "rdma")}
        return batch.times(done.text, self.options), report(self.pair.b, "client") if sdp else None, kernel

    def stop(self):
        """The report of the server that has the library."""
        for sdp, server in self.servers.items():
            self.pair.a.run(f"kill -INT $(head -1 {self.folder}/{sdp}/postmaster.pid)")
            server.wait()
        return report(self.pair.a, "server")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--inserts", type=int, default=300)
    parser.add_argument("--selects", type=int, default=10)
    options = parser.parse_args()
    options.durable = False
    folder = Path(tempfile.mkdtemp(prefix="sdp-batch-"))
    folder.chmod(0o755)
    cluster(folder)
    (folder / "batch.sql").write_text(batch.script(options))
    (folder / "batch.sql").chmod(0o644)
    pair = Pair(prepare())
    turns = {False: [], True: []}
    try:
        pair.wait_up()
        bench = Bench(pair, folder, options)
        for turn in range(options.turns):
            for sdp in (False, True) if turn % 2 == 0 else (True, False):
                turns[sdp].append(bench.play(sdp))
        server = bench.stop()
    finally:
        pair.close()
        shutil.rmtree(folder, ignore_errors=True)
    for sdp, title in ((True, "over SDP"), (False, "over TCP")):
        batch.table(f"Summary {title}, emulated machines: no times of a card", [sum(parts, []) for parts in
                                                                             zip(*(found for found, _, _ in turns[sdp]))])
    # Each statement, and the one that sets how commits wait.
    print(f"\n{options.inserts + options.selects + 3} round trips of statements a batch; server's user {SERVER}, client's {CLIENT}")
    for sdp, title in ((False, "TCP"), (True, "SDP")):
        for lane in ("tcp", "rdma"):
            packets, count = (sum(kernel[lane][i] for _, _, kernel in turns[sdp]) / options.turns for i in (0, 1))
            print(f"batch over {title}: {packets:.0f} packets of {lane}, {count:.0f} bytes, by the client's kernel")
    clients = [client for _, client, _ in turns[True]]
    for name, reports in (("clients", clients), ("server", [server])):
        sums = {key: sum(r["bytes"][key] for r in reports) for key in reports[0]["bytes"]}
        by_sdp = sums["sdp_sent"] + sums["sdp_received"]
        met = sum(r["fabrics"]["verbs"] for r in reports)
        print(f"{name}: {met} connections met over verbs; payload {sums}, {by_sdp / sum(sums.values()):.1%} over SDP")
        print(f"  reasons {[r['reasons'] for r in reports]}, demotions {[r['demotions'] for r in reports]}")


if __name__ == "__main__":
    main()
