#!/usr/bin/env python3
"""A batch of SQL statements over TCP and over SDP, one client, one statement after the other.

Four statements: CREATE TABLE, a block of INSERTs, SELECTs of all rows, DROP TABLE; each is timed at the client, by psql.
Two servers live side by side, one with the library and one without; batches take turns. Printed are a table for each, as
batch tools of databases print it, over all turns, and the median of each turn's ratio of means to the one next to it,
with the whole spread. The geometric mean is that of a usual statement: what else runs on the machine is in a few long
ones. A commit does not wait for the disk unless `--durable` says so, because that is the same for
both. Nothing here decides a test.

    benches/batch.py [--turns N] [--inserts N] [--selects N] [--durable] [--users one|two|root]     (users: as in apps.py)
"""

import argparse
import pathlib
import re
import statistics
import sys
import tempfile
from contextlib import ExitStack, contextmanager

import apps

CREATE = "create table demo (c1 bigint, c2 double precision, c3 varchar(8));"
INSERT = "insert into demo values (-9223372036854775808, -0.000000000000005, 'demo');"
SELECT = "select * from demo;"
DROP = "drop table demo;"
# What the report calls them; the first calls of a connection are over TCP always.
NAMES = ("Statement 1", "Block     1", "Statement 3", "Statement 4")


def script(options):
    """The batch, as psql reads it. Rows go nowhere."""
    commit = "on" if options.durable else "off"
    return "\n".join([
        f"set synchronous_commit = {commit};", "\\o /dev/null", "\\timing on", CREATE,
        *[INSERT] * options.inserts, *[SELECT] * options.selects, DROP, "",
    ])


def times(text, options):
    """Seconds of each execution, by statement."""
    told = [float(ms) / 1000 for ms in re.findall(r"^Time: ([0-9.]+) ms", text, re.MULTILINE)]
    ends = [1, 1 + options.inserts, 1 + options.inserts + options.selects, len(told)]
    assert len(told) == ends[2] + 1, text[-2000:]
    return [told[begin:end] for begin, end in zip([0, *ends], ends)]


@contextmanager
def batches(run, options):
    """A server, and what plays the batch on it."""
    folder = run.folder
    file = folder / "batch.sql"
    file.write_text(script(options))
    file.chmod(0o644)
    with apps.server_of_database(run, durable=options.durable) as client:
        command = [str(apps.POSTGRES / "psql"), "-X", "-q", *client, "-f", str(file), "postgres"]
        yield lambda: times(run.output(command, "postgres"), options)


def table(title, found):
    """The two tables of such a tool."""
    print(f"\n{title}")
    print("Type        Repetitions Total Time (s) Min Time (s)   Max Time (s)")
    print("----------- ----------- -------------- -------------- --------------")
    for name, all_of_it in zip(NAMES, found):
        print(f"{name} {len(all_of_it):11} {sum(all_of_it):14.6f} {min(all_of_it):14.6f} {max(all_of_it):14.6f}")
    print("Type        Repetitions Arithmetic Mean Geometric Mean")
    print("----------- ----------- --------------- --------------")
    for name, all_of_it in zip(NAMES, found):
        print(f"{name} {len(all_of_it):11} {statistics.mean(all_of_it):15.6f} {statistics.geometric_mean(all_of_it):14.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--inserts", type=int, default=4000)
    parser.add_argument("--selects", type=int, default=50)
    parser.add_argument("--durable", action="store_true", help="a commit waits for the disk")
    apps.add_users(parser)
    options = parser.parse_args()
    if not apps.SDP.exists():
        sys.exit("build first: cargo xtask build")
    users = apps.users_of(options)
    turns = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="sdp-bench-") as name, ExitStack() as ends:
        pathlib.Path(name).chmod(0o755)
        runs, asks = {}, {}
        for sdp in turns:
            folder = pathlib.Path(name) / str(sdp)
            folder.mkdir()
            runs[sdp] = apps.Run(sdp, folder, users)
            asks[sdp] = ends.enter_context(batches(runs[sdp], options))
            asks[sdp]()  # what is slow for the first time only
        for turn in range(options.turns):
            for sdp in (False, True) if turn % 2 == 0 else (True, False):
                turns[sdp].append(asks[sdp]())
        ends.close()
        share = runs[True].share()
    for sdp, title in ((True, "over SDP"), (False, "over TCP")):
        table(f"Summary {title}", [sum(parts, []) for parts in zip(*turns[sdp])])
    print()
    for number, name in ((1, f"INSERT, {options.inserts} in turn"), (2, f"SELECT of {options.inserts} rows")):
        for mean, kind in ((statistics.mean, "arithmetic"), (statistics.geometric_mean, "geometric")):
            means = {sdp: [mean(batch[number]) for batch in turns[sdp]] for sdp in turns}
            ratios = [sdp / tcp for tcp, sdp in zip(means[False], means[True])]
            print(
                f"{name}, users {options.users}, {kind} mean: TCP {statistics.median(means[False]) * 1e6:.1f} us, "
                f"SDP {statistics.median(means[True]) * 1e6:.1f} us, SDP takes {statistics.median(ratios):.3f} "
                f"[{min(ratios):.3f} - {max(ratios):.3f}] of TCP's time, {options.turns} turns"
            )
    print(f"{share:.1%} of the bytes of the one server and its clients on SDP")


if __name__ == "__main__":
    main()
