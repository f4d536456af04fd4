"""Redis: server, its own benchmark and command line, with BGSAVE (a fork) under load."""

import hashlib

import pytest

from support import ONE_TOO, check, placements
from support.procs import wait_until

VALUE = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(100_000))


def redis_server(stage, port, folder):
    """A server with its own directory; nothing is saved unless asked."""
    stage.folder(folder, stage.servant("redis-server"))
    argv = ["redis-server", "--bind", "127.0.0.1", "--port", port, "--save", ""]
    argv += ["--dir", stage.dir / folder]
    return stage.server("redis-server", argv, port=port)


def wait_info(stage, cli, section, line):
    """Waits until INFO has the line; asked without the library, so as not to count."""
    command = cli + ["info", section]
    ask = lambda: line in stage.client("wait", command, plain=True).text.split()
    wait_until(ask, line)


def contents(stage, cli):
    """Checksums of everything the server holds."""
    commands = (["get", "large"], ["get", "key:__rand_int__"], ["get", "counter:__rand_int__"])
    commands += (["llen", "mylist"], ["lrange", "mylist", "0", "9999"])
    answers = (stage.client("contents", cli + ["--raw"] + command).out for command in commands)
    return [hashlib.sha256(answer).hexdigest() for answer in answers]


def load(stage):
    """Benchmark, BGSAVE during it, a large value back and forth, and the saved file's content."""
    port = stage.port()
    server = redis_server(stage, port, "data")
    cli = ["redis-cli", "-h", "127.0.0.1", "-p", port]
    large = stage.client("set", cli + ["-x", "set", "large"], stdin=VALUE).text
    bench = ["redis-benchmark", "-h", "127.0.0.1", "-p", port, "-c", "20", "-d", "1000", "--csv"]
    running = stage.start("benchmark", bench + ["-n", "30000", "-t", "set,get,incr,lpush,lrange_100"])
    save = stage.client("bgsave", cli + ["bgsave"]).text
    done = stage.finish(running)
    tests = [line.split(",")[0] for line in done.text.splitlines()]
    back = stage.client("get", cli + ["--raw", "get", "large"]).out
    piped = stage.client(
        "pipeline",
        ["redis-benchmark", "-h", "127.0.0.1", "-p", port, "-c", "4", "-P", "16"]
        + ["-d", "512", "-n", "30000", "-t", "set", "--csv"],
    ).text
    wait_info(stage, cli, "persistence", "rdb_bgsave_in_progress:0")
    status = stage.client("info", cli + ["info", "persistence"]).text
    assert "rdb_last_bgsave_status:ok" in status
    assert back == VALUE + b"\n"
    held = contents(stage, cli)
    saved = stage.client("save", cli + ["save"]).text
    keys = sorted(stage.client("keys", cli + ["--raw", "keys", "*"]).text.split())
    stage.stop(server)

    again = stage.port()
    second = redis_server(stage, again, "data")
    wait_info(stage, ["redis-cli", "-p", again], "persistence", "loading:0")
    reloaded = contents(stage, ["redis-cli", "-p", again])
    stage.stop(second)
    assert reloaded == held, "the saved file does not hold what the server held"
    return {
        "large": large,
        "save": save,
        "saved": saved,
        "tests": tests,
        "pipelined": piped.splitlines()[-1].split(",")[0],
        "held": held,
        "keys": keys,
        "value": hashlib.sha256(back).hexdigest(),
    }


@pytest.mark.quick
@placements(*ONE_TOO)
def test_benchmark_with_bgsave(ladder, placement):
    """Every reply is that of plain TCP; a fork in the middle costs nothing."""
    check(ladder, "redis", load, placement, bulk=True, quiet=False)
