#!/usr/bin/env python3
"""Application benchmarks: real programs over TCP and over SDP, in turn.

Each round runs the pair once without the library and once under `sdp run`, in alternating order; the
figure is the median of the rounds, the ratio the median of the paired ratios with the whole spread
beside it. Servers bind 127.0.0.1 and are ended by pid. Nothing here decides a test.

    benches/apps.py [--rounds N] [redis1] [redis50] [pgbench] [iperf3]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SDP = ROOT / "target" / "release" / "sdp"


def free_port():
    """A TCP port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, seconds=20):
    """Until somebody listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nobody listens on {port}")


def wait_for_listener(port, server, seconds=20):
    """Until a listener exists, without connecting: a server of one session would serve the probe."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nobody listens on {port}")


class Run:
    """Commands with or without the library, and where their bytes went."""

    def __init__(self, sdp, folder):
        self.sdp = sdp
        self.folder = folder
        self.reports = []

    def wrap(self, command):
        if not self.sdp:
            return command
        report = self.folder / f"report-{len(self.reports)}.json"
        self.reports.append(report)
        return [str(SDP), "run", "--report", str(report), "--", *command]

    def start(self, command, **options):
        log = open(self.folder / "log", "ab")
        return subprocess.Popen(self.wrap(command), stdout=log, stderr=log, **options)

    def output(self, command, **options):
        return subprocess.run(
            self.wrap(command), capture_output=True, text=True, timeout=120, check=True, **options
        ).stdout

    def share(self):
        """Part of all payload bytes that went over SDP."""
        sdp = tcp = 0
        for report in self.reports:
            # Written when the command has ended; every command has been waited for.
            text = report.read_text() if report.exists() else ""
            if not text:
                log = (self.folder / "log").read_text(errors="replace")
                raise RuntimeError(f"`sdp run` left no report; its log:\n{log}")
            counted = json.loads(text)["bytes"]
            sdp += counted["sdp_sent"] + counted["sdp_received"]
            tcp += counted["tcp_sent"] + counted["tcp_received"]
        return sdp / (sdp + tcp) if sdp + tcp else 0.0


def stop(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def redis(clients):
    def measure(run):
        port = free_port()
        server = run.start(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
             "--dir", str(run.folder)]
        )
        try:
            wait_for(port)
            out = run.output(
                ["redis-benchmark", "-p", str(port), "-t", "get", "-n", str(40000 * (1 + (clients > 1) * 2)),
                 "-c", str(clients), "-q"]
            )
        finally:
            stop(server)
        return float(re.findall(r"([0-9.]+) requests per second", out)[-1])
    return measure


def pgbench(run):
    binaries = pathlib.Path("/usr/lib/postgresql/15/bin")
    data = run.folder / "pg"
    user = "postgres" if os.geteuid() == 0 else None
    os.chmod(run.folder, 0o777)  # the report is written by the server's user
    data.mkdir()
    if user:
        shutil.chown(data, user)
    port = free_port()
    options = {"user": user} if user else {}
    subprocess.run(
        [binaries / "initdb", "-D", data, "-A", "trust", "-N"],
        check=True, capture_output=True, cwd="/", **options,
    )
    server = run.start(
        [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(data),
         "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
        cwd="/", **options,
    )
    try:
        try:
            wait_for(port)
        except TimeoutError as error:
            raise TimeoutError((run.folder / "log").read_text()) from error
        client = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]
        subprocess.run(
            [binaries / "pgbench", *client, "-i", "-s", "2", "-q", "postgres"],
            check=True, capture_output=True, cwd="/", **options,
        )
        out = run.output(
            [str(binaries / "pgbench"), *client, "-S", "-c", "4", "-T", "4", "-n", "postgres"],
            cwd="/", **options,
        )
    finally:
        stop(server)
    return float(re.search(r"tps = ([0-9.]+)", out).group(1))


def iperf3(run):
    """Bandwidth; and the CPU time of both ends per byte, as iperf3 counts it."""
    port = free_port()
    # One session, then the server ends by itself.
    server = run.start(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)])
    try:
        wait_for_listener(port, server)
        out = run.output(
            ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", "2", "-l", "131072", "-J"]
        )
        server.wait(20)
    finally:
        if server.poll() is None:
            stop(server)
    end = json.loads(out)["end"]
    used = end["cpu_utilization_percent"]
    seconds = end["sum_sent"]["seconds"]
    cpu_s = (used["host_total"] + used["remote_total"]) / 100 * seconds
    return end["sum_received"]["bits_per_second"] / 8e9, cpu_s / (end["sum_sent"]["bytes"] / 1e9)


ROWS = {
    "redis1": ("redis GET, 1 client", "requests/s", redis(1), "redis-server"),
    "redis50": ("redis GET, 50 clients", "requests/s", redis(50), "redis-server"),
    "pgbench": ("pgbench select-only, 4 clients", "transactions/s", pgbench, "psql"),
    "iperf3": ("iperf3, 128 KiB writes", "GB/s", iperf3, "iperf3"),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args()
    if not SDP.exists():
        sys.exit("build first: cargo xtask build")
    for row in options.rows or ROWS:
        title, unit, measure, program = ROWS[row]
        if not shutil.which(program):
            print(f"{title}: {program} is not installed")
            continue
        figures = {False: [], True: []}
        cpus = {False: [], True: []}
        shares = []
        for i in range(options.rounds):
            for sdp in (False, True) if i % 2 == 0 else (True, False):
                with tempfile.TemporaryDirectory(prefix="sdp-bench-") as folder:
                    run = Run(sdp, pathlib.Path(folder))
                    measured = measure(run)
                    if isinstance(measured, tuple):
                        measured, cpu = measured
                        cpus[sdp].append(cpu)
                    figures[sdp].append(measured)
                    if sdp:
                        shares.append(run.share())
        ratios = [b / a for a, b in zip(figures[False], figures[True])]
        print(
            f"{title}: TCP {statistics.median(figures[False]):.4g} {unit}, "
            f"SDP {statistics.median(figures[True]):.4g} {unit}, "
            f"ratio {statistics.median(ratios):.2f} [{min(ratios):.2f} - {max(ratios):.2f}], "
            f"{statistics.median(shares):.1%} of the bytes on SDP, {options.rounds} rounds",
            flush=True,
        )
        if cpus[True]:
            ratios = [b / a for a, b in zip(cpus[False], cpus[True])]
            print(
                f"{title}, CPU of both ends: TCP {statistics.median(cpus[False]):.3g} s/GB, "
                f"SDP {statistics.median(cpus[True]):.3g} s/GB, "
                f"ratio {statistics.median(ratios):.2f} [{min(ratios):.2f} - {max(ratios):.2f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
