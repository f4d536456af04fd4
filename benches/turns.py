#!/usr/bin/env python3
"""Servers with and without the library side by side.

What the library adds to a connection that is made for one request is a few hundredths, less than two runs of the same
program differ by on a machine that others use too; and runs of Apache differ by more than most. So both servers live at
the same time, and clients take turns of a second or some tenths of one; what is compared is each turn with the one next to it.
Where a client and a server that never rest share the processors, how the scheduler places them is worth more than what
is to be seen: with `--pinned` servers are on one processor and clients on another. Nothing here decides a test.

    benches/turns.py [--turns N] [--pinned] [--users one|two|root] [ROW …]        (without a row: all; users: as in apps.py)
"""

import argparse
import os
import pathlib
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack, contextmanager

import apps

RESAMPLES = 1000
SERVER_CPU, CLIENT_CPU = 0, 1
ROWS = {
    # So many requests that the client's start is not what is compared.
    "nginx-connect": (
        "nginx, 1 KiB, a connection for each request", "requests/s",
        lambda run: apps.page(run, *apps.NGINX_AT), ("ab", "-q", "-n", "8000", "-c", "20"),
    ),
    "apache": (
        "Apache prefork, 1 KiB, 20 connections kept", "requests/s",
        lambda run: apps.page(run, *apps.APACHE_AT), ("ab", "-q", "-k", "-n", "20000", "-c", "20"),
    ),
    # More processes than processors: where the scheduler puts them is worth a quarter of a turn, however long that is.
    "pgbench": (
        "pgbench select-only, 4 clients", "transactions/s", apps.database, ("-T", "1"),
    ),
    "pgbench-connect": (
        "pgbench select-only, 4 clients, a connection each time", "transactions/s",
        apps.database, ("-C", "-t", "30"),
    ),
    "scp": ("scp of 100 MB", "MB/s", apps.copying, ()),
}


def interval(values):
    """Median and the 95 % bootstrap interval of it."""
    draws = sorted(
        statistics.median(random.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    cut = RESAMPLES // 40
    return statistics.median(values), draws[cut], draws[-cut - 1]


@contextmanager
def on_cpu(cpu):
    """What is started meanwhile has this processor only."""
    before = os.sched_getaffinity(0)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--pinned", action="store_true", help="servers on one processor, clients on another")
    apps.add_users(parser)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args()
    if not apps.SDP.exists():
        sys.exit("build first: cargo xtask build")
    users = apps.users_of(options)
    for row in options.rows or ROWS:
        title, unit, server, load = ROWS[row]
        title += f", {users.kind}" * (options.users != "one")
        if options.pinned:
            title += ", pinned"
        cpus = (SERVER_CPU, CLIENT_CPU) if options.pinned else (None, None)
        figures = {False: [], True: []}
        with tempfile.TemporaryDirectory(prefix="sdp-bench-") as name, ExitStack() as ends:
            pathlib.Path(name).chmod(0o755)
            runs, asks = {}, {}
            for sdp in (False, True):
                folder = pathlib.Path(name) / str(sdp)
                folder.mkdir()
                runs[sdp] = apps.Run(sdp, folder, users)
                with on_cpu(cpus[0]):
                    asks[sdp] = ends.enter_context(server(runs[sdp]))
                asks[sdp](*load)  # what is slow for the first time only
            for turn in range(options.turns):
                for sdp in (False, True) if turn % 2 == 0 else (True, False):
                    with on_cpu(cpus[1]):
                        figures[sdp].append(asks[sdp](*load))
            ends.close()
            share = runs[True].share()
        ratio = interval([sdp / tcp for tcp, sdp in zip(figures[False], figures[True])])
        print(
            f"{title}: TCP {statistics.median(figures[False]):.4g} {unit}, "
            f"SDP {statistics.median(figures[True]):.4g} {unit}, "
            f"ratio {ratio[0]:.3f} [{ratio[1]:.3f} - {ratio[2]:.3f}], "
            f"{share:.1%} of the bytes on SDP, {options.turns} turns",
            flush=True,
        )


if __name__ == "__main__":
    main()
