"""PostgreSQL 15: a fork per connection, latches, COPY, timeouts, cancel, pgbench."""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support import Placement, check, placements
from support.procs import wait_until

PROGRAMS = Path("/usr/lib/postgresql/15/bin")
# The server refuses to run as root.
USER = "postgres" if os.geteuid() == 0 else None
# Of each client: about 150 bytes to and fro.
SELECTS = 12_000
ROWS = "".join(f"{i}\t{hashlib.md5(b'%d' % i).hexdigest()}\n" for i in range(100_000)).encode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A fresh database cluster; scenarios work on copies."""
    path = tmp_path_factory.mktemp("cluster")
    for parent in (path, *path.parents):
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    data = path / "data"
    data.mkdir()
    command = [PROGRAMS / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N"]
    if USER:
        entry = pwd.getpwnam(USER)
        os.chown(data, entry.pw_uid, entry.pw_gid)
        command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"] + command
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")
    yield data
    shutil.rmtree(path)


def start(stage, cluster):
    """Starts PostgreSQL over a copy of the cluster; (program, how its clients reach it)."""
    data = stage.dir / "data"
    subprocess.run(["cp", "-a", cluster, data], check=True)
    port = stage.port()
    argv = [PROGRAMS / "postgres", "-D", data, "-p", port, "-k", stage.dir]
    for setting in ("listen_addresses=127.0.0.1", "fsync=off", "max_connections=30"):
        argv += ["-c", setting]
    # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients.
    server = stage.server("postgres", argv, port=port, user=USER, stop=signal.SIGINT)
    return server, ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]


def scenario(cluster):
    """The scenario over a copy of the cluster."""

    def run(stage):
        server, to = start(stage, cluster)

        def sql(text, *, stdin=None, ok=(0,), plain=False):
            argv = [PROGRAMS / "psql", *to, "-X", "-A", "-t", "-q", "-c", text, "postgres"]
            return stage.client("psql", argv, stdin=stdin, ok=ok, plain=plain)

        ready = lambda: sql("select 1", plain=True, ok=(0, 1, 2)).text == "1\n"
        wait_until(ready, "first answer of PostgreSQL", 30)
        bench = [PROGRAMS / "pgbench", *to]
        stage.client("fill", bench + ["-i", "-s", "1", "-q", "postgres"])
        select = bench + ["-S", "-c", "4", "-j", "2", "-t", "1500", "postgres"]
        selects = stage.client("selects", select).text
        write = bench + ["-c", "4", "-t", "200", "--random-seed=7", "postgres"]
        writes = stage.client("writes", write).text

        sql("create table t (id int primary key, word text)")
        sql("copy t from stdin", stdin=ROWS)
        copied = sql("copy (select * from t order by id) to stdout").out
        long = sql("select string_agg(word, '' order by id) from t").out
        timeout = sql("set statement_timeout = 300; select pg_sleep(20)", ok=(1,))

        sleeper = stage.start(
            "cancelled",
            [PROGRAMS / "psql", *to, "-X", "-c", "select pg_sleep(50)", "postgres"],
        )
        running = "select count(*) from pg_stat_activity where query = 'select pg_sleep(50)'"
        wait_until(lambda: sql(running, plain=True).text == "1\n", "the query to cancel")
        cancelling = "select pg_cancel_backend(pid) from pg_stat_activity where query = "
        sql(cancelling + "'select pg_sleep(50)'")
        cancelled = stage.finish(sleeper, ok=(1,))

        sums = "(select sum(abalance) from pgbench_accounts), (select sum(delta) from pgbench_history)"
        assert copied == ROWS
        result = {
            "selects": outcome(selects),
            "writes": outcome(writes),
            "consistent": sql(f"select {sums}").text,
            "accounts": sql("select count(*), md5(string_agg(aid::text, ',' order by aid)) "
                            "from pgbench_accounts").text,
            "copied": hashlib.sha256(copied).hexdigest(),
            "long": hashlib.sha256(long).hexdigest(),
            "timeout": last_line(timeout.err),
            "cancelled": last_line(cancelled.err),
        }
        stage.stop(server)
        return result

    return run


def selects(cluster):
    """Point queries by four clients, each on a connection that it keeps."""

    def run(stage):
        server, to = start(stage, cluster)
        bench = [PROGRAMS / "pgbench"]
        # By a Unix socket, so that nothing but the queries crosses TCP.
        local = ["-h", stage.dir, *to[2:]]
        ready = [PROGRAMS / "psql", *local, "-X", "-A", "-t", "-q", "-c", "select 1", "postgres"]
        is_ready = lambda: stage.client("psql", ready, ok=(0, 1, 2)).text == "1\n"
        wait_until(is_ready, "first answer of PostgreSQL", 30)
        stage.client("fill", bench + [*local, "-i", "-s", "1", "-q", "postgres"])
        select = bench + [*to, "-S", "-c", "4", "-j", "2", "-t", str(SELECTS), "postgres"]
        text = stage.client("selects", select).text
        stage.stop(server)
        return outcome(text)

    return run


def outcome(text):
    """The lines of pgbench's answer that do not depend on time."""
    return [line for line in text.splitlines() if "processed" in line or "failed" in line]


def last_line(err):
    """What psql complained about last; `sdp run` adds no output of its own."""
    return err.decode().strip().splitlines()[-1]


@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP)
def test_selects(ladder, cluster, placement):
    """Not one query fails, and small ones are what goes over SDP."""
    check(ladder, "postgres-selects", selects(cluster), placement)


@placements()
def test_queries_copy_and_pgbench(ladder, cluster, placement):
    """Results, row by row, are those of plain TCP; no transaction fails."""
    check(ladder, "postgres", scenario(cluster), placement, quiet=False)
