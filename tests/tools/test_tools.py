"""The tools and the settings against the real library: what a process publishes, what a report adds
up, what rule file and environment do."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.procs import wait_until
from support.stage import python

pytestmark = pytest.mark.quick

PAIR = Path(__file__).with_name("pair.py")
ROUNDS, LENGTH, UNREAD = 200, 100, 5000
BYTES = ROUNDS * LENGTH
LIMIT_S = 60


@pytest.fixture(name="scratch")
def _scratch():
    with tempfile.TemporaryDirectory(prefix="sdp-tools-") as path:
        yield Path(path)


def environment(**extra):
    """The environment without anything of ours, and `extra`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "LD_", "LIBSDP_"))}
    env.pop("SIMPLE_LIBSDP", None)
    return {**env, **extra}


def sdp(ladder, *arguments, **options):
    """Runs `sdp`."""
    options.setdefault("env", environment())
    return subprocess.run(
        [ladder.artifacts.sdp, *map(str, arguments)],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        text=True,
        **options,
    )


@contextmanager
def pair(ladder, *options, mode="plain", **env):
    """A running pair: (pid of the parent, pid of the child, port of the listener, child's port)."""
    command = [ladder.artifacts.sdp, "run", *options, "--", python(), PAIR, mode]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(**env), text=True
    ) as process:
        try:
            word, child, port, other = process.stdout.readline().split()
            assert word == "ready"
            with open(f"/proc/{child}/stat", encoding="ascii") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
            yield parent, int(child), int(port), int(other)
            process.stdin.close()
            assert process.wait(LIMIT_S) == 0
        except BaseException:
            process.send_signal(signal.SIGKILL)
            raise


def stat(ladder, pid):
    """What `sdp stat --json` says of a process."""
    done = sdp(ladder, "stat", "--json", "--pid", pid)
    assert done.returncode == 0, done.stderr
    (process,) = json.loads(done.stdout)["processes"]
    return process


def report_of(ladder, scratch, *options, mode="plain", **env):
    """The report of a pair that ran to its end."""
    path = scratch / "report.json"
    command = ["run", "--report", path, *options, "--", python(), PAIR, mode]
    done = sdp(ladder, *command, stdin=subprocess.DEVNULL, env=environment(**env))
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text(encoding="utf-8")), done


def test_a_report_counts_both_halves_of_both_ends(ladder, scratch):
    """The figures of the contract's example, in small."""
    report, done = report_of(ladder, scratch, "--no-config")
    assert done.stderr == "", "the library does not speak unasked"
    assert report["processes"] == 2
    assert report["connections"] == {"seen": 2, "sdp": 2, "tcp": 0}
    assert report["switches"] == {"promoted": 4, "demoted": 0}
    assert report["reasons"] == {} and report["demotions"] == {}
    total = report["bytes"]
    assert total["sdp_sent"] == total["sdp_received"] > 0
    assert total["sdp_sent"] + total["tcp_sent"] == 2 * BYTES + UNREAD
    assert total["sdp_received"] + total["tcp_received"] == 2 * BYTES + UNREAD


def test_stat_shows_listeners_lanes_and_queues(ladder):
    """Addresses, states, lanes of both directions and the bytes in the ring, at both ends."""
    with pair(ladder, "--no-config") as (parent, child, port, other):
        def shown():
            return stat(ladder, parent), stat(ladder, child)

        server, client = wait_until(
            lambda: (both := shown())[0]["connections"][-1]["receive"]["queued"] == UNREAD and both,
            "the unread bytes",
        )
        listener, accepted = server["connections"]
        (connected,) = client["connections"]
        assert (listener["role"], listener["state"]) == ("listener", "LISTEN")
        assert (listener["local"], listener["remote"]) == (f"127.0.0.1:{port}", "0.0.0.0:0")
        assert (accepted["role"], connected["role"]) == ("server", "client")
        assert accepted["local"] == connected["remote"] == f"127.0.0.1:{port}"
        assert accepted["remote"] == connected["local"] == f"127.0.0.1:{other}"
        for connection in (accepted, connected):
            assert connection["state"] == "ESTABLISHED"
            for way in ("send", "receive"):
                half = connection[way]
                assert (half["lane"], half["fabric"], half["mode"]) == ("sdp", "shm", "buffered")
                assert (half["promoted"], half["demoted"], half["reason"]) == (1, 0, None)
                assert (half["credits"], half["threshold"]) == (65535, 0)
        assert (accepted["send"]["queued"], connected["receive"]["queued"]) == (0, 0)
        assert connected["send"]["queued"] == UNREAD
        sent = connected["send"]
        assert sent["sdp_bytes"] + sent["tcp_bytes"] == BYTES + UNREAD
        assert server["age_s"] >= 0
        text = sdp(ladder, "stat", "--pid", parent).stdout
        assert "LISTEN" in text and text.count("shm/buffered") == 2


def test_sdpnetstat_has_netstats_columns(ladder):
    """Listener, both ends, their queues and owners."""
    with pair(ladder, "--no-config") as (parent, child, port, other):
        def lines(*arguments):
            done = subprocess.run(
                [ladder.artifacts.dir / "sdpnetstat", *arguments],
                capture_output=True, check=True, text=True, timeout=LIMIT_S,
            )
            found = [line.split() for line in done.stdout.splitlines()]
            return [line for line in found if line[-1].split("/")[0] in (str(parent), str(child))]

        here, there = f"127.0.0.1:{port}", f"127.0.0.1:{other}"
        expected = [
            ["sdp", str(UNREAD), "0", here, there, "ESTABLISHED"],
            ["sdp", "0", str(UNREAD), there, here, "ESTABLISHED"],
        ]
        got = wait_until(
            lambda: [l[:6] for l in lines("-Snp")] == expected and lines("-Snp"), "both ends"
        )
        assert [line[6].split("/")[0] for line in got] == [str(parent), str(child)]
        listeners = lines("-Slnp")
        assert [line[:6] for line in listeners] == [["sdp", "0", "0", here, "0.0.0.0:*", "LISTEN"]]


def test_tcp_connections_are_shown_with_their_reason(ladder):
    """A rule keeps them on TCP: named and explained all the same, not listed as SDP."""
    with pair(ladder, "--tcp") as (parent, child, port, other):
        for pid in (parent, child):
            found = stat(ladder, pid)
            assert found["reasons"] == {"rule-tcp": 1}
            connection = found["connections"][-1]
            assert {connection["local"], connection["remote"]} == {
                f"127.0.0.1:{port}", f"127.0.0.1:{other}"
            }
            assert connection["state"] == "ESTABLISHED"
            assert connection["send"]["lane"] == "tcp"
            assert connection["send"]["reason"] == "rule-tcp"
            assert connection["send"]["tcp_bytes"] >= BYTES
        done = subprocess.run(
            [ladder.artifacts.dir / "sdpnetstat", "-Sanp"],
            capture_output=True, check=True, text=True, timeout=LIMIT_S,
        )
        assert f":{port} " not in done.stdout


def test_a_log_is_written_when_it_is_asked_for(ladder, scratch):
    """Lookups, connections and lanes, in the historic words; bad values and bad lines."""
    rules = scratch / "rules.conf"
    rules.write_text("use sdp klient * *:*\nuse both client python* *:*\n", encoding="utf-8")
    _, done = report_of(
        ladder, scratch, "--config", rules, "--log", "3", SDP_RECV_POLL="soon"
    )
    lines = done.stderr.splitlines()
    form = r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} [^ ]+\[\d+\] libsdp "
    assert lines and all(re.match(form, line) for line in lines), done.stderr
    texts = [re.sub(form, "", line) for line in lines]
    for wanted in (
        "CONFIG: SDP_RECV_POLL cannot have this value",
        f"CONFIG: {rules}:1:9: error: ",
        "MATCH LISTEN: 127.0.0.1 port ",
        f"MATCH: {rules}:2 POSITIVE",
        "LISTEN: fd:",
        "CONNECT: connected TCP fd:",
        "ACCEPT: accepting on TCP fd:<",
    ):
        assert any(text.startswith(wanted) for text in texts), (wanted, texts)
    lanes = [text.split(" ", 2)[2] for text in texts if text.startswith("LANE: ")]
    assert sorted(lanes) == ["receiving on SDP"] * 2 + ["sending on SDP"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_log_file_is_its_owners_alone(ladder, scratch):
    """A directory of mode 0700; one that others could have prepared is not used."""
    os.chmod(scratch, 0o1777)
    # Where that user can read it, wherever the tree is.
    program = shutil.copy(PAIR, scratch)
    name = scratch / "log"
    user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]
    command = [*user, ladder.artifacts.sdp, "run", "--no-config", "--log", f"7:{name}", "--",
               python(), program]
    options = {"stdin": subprocess.DEVNULL, "check": True, "timeout": LIMIT_S,
               "env": environment(HOME="/")}
    subprocess.run(command, **options, stdout=subprocess.DEVNULL)
    directory = scratch / "log.4242"
    assert directory.stat().st_mode & 0o777 == 0o700
    text = (directory / "log").read_text(encoding="utf-8")
    assert "LANE: " in text
    directory.chmod(0o755)
    subprocess.run(command, **options, stdout=subprocess.DEVNULL)
    assert (directory / "log").read_text(encoding="utf-8") == text


# Each leaves lines in the log. Python ignores the signal, most programs do not.
MANY_LISTENERS = """
import signal, socket
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
for _ in range(50):
    socket.create_server(("127.0.0.1", 0)).close()
"""


def test_a_log_never_reaches_the_limit_of_a_file(ladder, scratch):
    """With a limit of file sizes the kernel would end the program for a line too many."""
    path = scratch / "err"
    with path.open("wb") as err:
        done = subprocess.run(
            ["bash", "-c", 'ulimit -f 1; exec "$@"', "-", ladder.artifacts.sdp, "run", "--no-config",
             "--log", "3", "--", python(), "-c", MANY_LISTENERS],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err, check=False,
            timeout=LIMIT_S, env=environment(),
        )
    assert done.returncode == 0
    assert path.stat().st_size == 1024, "cut at the limit, and the limit was reached"


def test_a_pipe_is_no_rule_file(ladder, scratch):
    """A program never waits for whoever might write its rules."""
    pipe = scratch / "pipe"
    os.mkfifo(pipe)
    report, _ = report_of(ladder, scratch, LIBSDP_CONFIG_FILE=str(pipe))
    assert report["connections"]["sdp"] == 2
    assert sdp(ladder, "run", "--config", pipe, "true").returncode == 125


def test_simple_mode_reads_no_file(ladder, scratch):
    """The historic variable; rules on the command line still count."""
    rules = scratch / "rules.conf"
    rules.write_text("use tcp client * *:*\nuse tcp server * *:*\n", encoding="utf-8")
    name = str(rules)
    report, _ = report_of(ladder, scratch, LIBSDP_CONFIG_FILE=name)
    assert report["reasons"] == {"rule-tcp": 2}
    for variable in ("SIMPLE_LIBSDP", "ALWAYS_USE_SDP"):
        report, _ = report_of(ladder, scratch, LIBSDP_CONFIG_FILE=name, **{variable: ""})
        assert report["connections"]["sdp"] == 2
    report, _ = report_of(ladder, scratch, "--tcp", SIMPLE_LIBSDP="1")
    assert report["reasons"] == {"rule-tcp": 2}


def test_io_uring_is_a_tunable_like_others(ladder, scratch):
    """By the rule file, `--set` and the environment; the later wins."""
    enosys = "-1 38"
    rules = scratch / "rules.conf"
    rules.write_text("option io_uring deny\n", encoding="utf-8")

    def answer(*options, **env):
        command = ["run", *options, "--", python(), PAIR, "uring"]
        return sdp(ladder, *command, env=environment(**env)).stdout.strip()

    real = answer("--no-config", "--set", "io_uring=allow")
    assert answer("--config", rules) == enosys
    assert answer("--no-config", "--set", "io_uring=deny") == enosys
    assert answer("--no-config", SDP_IO_URING="deny") == enosys
    assert answer("--config", rules, "--set", "io_uring=allow") == real


def test_what_executed_programs_move_is_counted(ladder, scratch):
    """cat has the connection as standard input and output: TCP, counted, and one process."""
    report, _ = report_of(ladder, scratch, "--no-config", mode="cat")
    assert report["processes"] == 3
    assert report["connections"] == {"seen": 2, "sdp": 0, "tcp": 2}
    assert report["reasons"]["standard-descriptor"] == 1
    assert report["bytes"] == {
        "sdp_sent": 0, "sdp_received": 0, "tcp_sent": 2 * BYTES, "tcp_received": 2 * BYTES
    }


def test_a_reason_that_comes_before_the_first_byte_is_told(ladder, scratch):
    """SO_ZEROCOPY set before connect."""
    report, _ = report_of(ladder, scratch, "--no-config", mode="zerocopy")
    assert report["connections"]["sdp"] == 0
    assert report["reasons"]["zerocopy-option"] == 1
    assert sum(report["reasons"].values()) == 2


def test_an_exclusive_registration_is_told(ladder, scratch):
    """EPOLLEXCLUSIVE keeps a connection on TCP, and nobody else is blamed for it."""
    report, _ = report_of(ladder, scratch, "--no-config", mode="exclusive")
    assert report["connections"]["sdp"] == 0
    assert report["reasons"]["unsuitable-socket"] == 1
    assert sum(report["reasons"].values()) == 2


@pytest.mark.parametrize("how", ["poll", "epoll"])
def test_waits_for_several_connections_are_counted(ladder, how):
    """The parent waits so before every message; what it then reads is there."""
    with pair(ladder, "--no-config", mode=how) as (parent, *_):
        text = sdp(ladder, "stat", "--prometheus", "--pid", parent).stdout
        waits = [line.split() for line in text.splitlines() if line.startswith("sdp_waits_total")]
        assert {line[0].split('how="')[1].split('"')[0] for line in waits} == {"spun", "slept"}
        assert sum(int(line[1]) for line in waits) > 0, text


def test_measuring_ports_serve_the_machine_that_asked(ladder):
    """What `sdp perf serve` starts for one machine: connections of others are closed, and do not count."""
    command = [ladder.artifacts.sdp, "perf-peer", "server", "--kind", "latency", "--size", "8", "--connections", "1"]
    command += ["--from", "127.0.0.2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True) as server:
        try:
            at = ("127.0.0.1", int(server.stdout.readline()))
            for stranger in ("127.0.0.1", "127.0.0.3"):
                with socket.create_connection(at, LIMIT_S, (stranger, 0)) as sock:
                    assert sock.recv(1) == b"", stranger
            with socket.create_connection(at, LIMIT_S, ("127.0.0.2", 0)) as sock:
                sock.sendall(b"measured")
                assert sock.recv(8, socket.MSG_WAITALL) == b"measured"
            assert server.wait(LIMIT_S) == 0
        finally:
            server.kill()


def rubbish(chance):
    """What a variable may hold: bytes, numbers that are none or far off, nothing, very much."""
    texts = [b"", b"0", b"-1", b"1e9", b"0x10", b"default", b"4294967297", b"9" * 400, b"shm,,verbs,shm", b" 5 ", b"\xff\xfe%n%s"]
    texts.append(bytes(chance.randrange(1, 256) for _ in range(chance.randrange(300))))
    texts.append(b"use sdp client * *:*\nuse" + b" tcp" * 30_000)
    return chance.choice(texts)


@pytest.mark.parametrize("seed", range(12))
def test_an_environment_of_rubbish_stops_no_program(ladder, tmp_path, seed):
    """Every variable that the library reads, all at once. A value that cannot be is the default, or TCP."""
    chance = random.Random(seed)
    keys = [one["key"] for one in json.loads(sdp(ladder, "tune", "--json").stdout)["tunables"]]
    names = [f"SDP_{key.upper().removeprefix('SDP_')}" for key in keys]
    names += ["SDP_RULES", "SDP_REPORT", "LIBSDP_CONFIG_FILE", "SIMPLE_LIBSDP", "ALWAYS_USE_SDP", "SDP_DLOPEN_DEEPBIND"]
    env = {os.fsencode(name): os.fsencode(value) for name, value in environment().items()}
    env |= {name.encode(): rubbish(chance) for name in names if chance.randrange(4)}
    # A strict rule among the rubbish is none: with it a connection that can have no SDP would fail, as it has to.
    env.pop(b"SIMPLE_LIBSDP", None)
    env.pop(b"ALWAYS_USE_SDP", None)
    if b"use sdp" in env.get(b"SDP_RULES", b""):
        env[b"SDP_RULES"] = env[b"SDP_RULES"].replace(b"use sdp", b"use both")
    done = subprocess.run(
        [python(), PAIR, "plain"], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False,
        env={**env, b"LD_PRELOAD": os.fsencode(ladder.artifacts.dir / "libsdp.so")}, cwd=tmp_path,
    )
    assert done.returncode == 0 and done.stdout.startswith(b"ready"), (env, done)
    assert not list(tmp_path.iterdir()), "nor does a value name a file that is written"
