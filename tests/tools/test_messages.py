"""Messages by size, requests and full rings: in `sdp stat`, in a report, in a scrape; since the start and since a reset."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager

import pytest

from support.procs import wait_until
from support.stage import python
from tools.sdp import LIMIT_S, environment, sdp
from tools.test_forms import hold, metrics

pytestmark = pytest.mark.quick

# One end asks, the other answers; what is asked for is read from standard input, a line each.
ENDS = """
import os, socket, sys
def exactly(sock, n):
    while n:
        n -= len(sock.recv(n))
listener = socket.create_server(("127.0.0.1", 0))
if (child := os.fork()) == 0:
    sock = socket.create_connection(listener.getsockname())
    listener.close()
    answer = None
else:
    sock, _ = listener.accept()
    print(os.getpid(), child, flush=True)
if child == 0:
    while head := sock.recv(8, socket.MSG_WAITALL):
        n = int(head)
        exactly(sock, n)
        sock.sendall(b"!")
    os._exit(0)
def ask(n):
    sock.sendall(b"%08d" % n)
    sock.sendall(bytes(n))
for n in [100] * 200:
    ask(n)
    exactly(sock, 1)
print("ready", flush=True)
for line in sys.stdin:
    for n in map(int, line.split()):
        ask(n)
        exactly(sock, 1)
    print("done", flush=True)
"""


@contextmanager
def ends(ladder, *options):
    """The asking process, its pid and the other's."""
    command = [ladder.artifacts.sdp, "run", "--no-config", *options, "--", python(), "-c", ENDS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        try:
            pids = [int(word) for word in process.stdout.readline().split()]
            assert process.stdout.readline() == "ready\n"
            yield process, *pids
        finally:
            process.stdin.close()
            process.wait(LIMIT_S)


def ask(process, *sizes):
    """Messages of these sizes, each answered by one byte."""
    process.stdin.write(" ".join(map(str, sizes)) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def stat(ladder, pid, *options, **env):
    """The form of one process."""
    form = json.loads(sdp(ladder, "stat", "--json", "--pid", pid, *options, env=environment(**env)).stdout)
    hold("stat", form)
    return form


def by_size(messages):
    """Classes that have messages."""
    return {size["to"]: size["count"] for size in messages["sizes"] if size["count"]}


def test_messages_are_counted_by_size(ladder, tmp_path):
    """Exactly, in a connection and in its process, since a reset; everything since the start besides."""
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with ends(ladder) as (process, asking, answering):
        wanted = lambda: stat(ladder, asking)["processes"][0]["connections"][-1]["send"]["lane"] == "sdp"
        wait_until(wanted, "the lane")
        assert sdp(ladder, "stat", "--reset", env=environment(**env)).stdout == ""
        before = stat(ladder, asking)["processes"][0]["messages"]
        ask(process, *[10] * 10, *[100] * 5, 1000, 16384, 20000)
        forms = [stat(ladder, pid, "--since-reset", **env) for pid in (asking, answering)]
        assert all(form["since_reset_s"] >= 0 for form in forms)
        (asker,), (answerer,) = (form["processes"] for form in forms)
        # Each question has a message of eight bytes before it.
        sizes = {64: 18 + 10, 256: 5, 1024: 1, 16384: 1, 65536: 1}
        for messages in (asker["messages"], asker["connections"][-1]["messages"]):
            assert by_size(messages) == sizes
            assert (messages["sent"], messages["received"], messages["requests"]) == (36, 18, 18)
        for messages in (answerer["messages"], answerer["connections"][-1]["messages"]):
            assert by_size(messages) == {64: 18}
            assert (messages["sent"], messages["received"], messages["requests"]) == (18, 36, 18)
        assert asker["bytes"]["tcp_sent"] == 0 and asker["seen"] == 0
        assert asker["bytes"]["sdp_sent"] == 18 * 8 + 100 + 500 + 1000 + 16384 + 20000
        now = stat(ladder, asking)
        assert now["since_reset_s"] is None
        assert now["processes"][0]["messages"]["sent"] == before["sent"] + 36
        text = sdp(ladder, "stat", "--pid", asking, "--since-reset", env=environment(**env)).stdout
        assert "since the reset" in text and "36 sent (to 64 B: 28, to 256 B: 5," in " ".join(text.split())


def test_a_full_ring_is_told_at_both_ends(ladder, tmp_path):
    """The sender of more than a ring to an end that is stopped: its own there, the peer's at the other."""
    report, scrape = tmp_path / "report.json", tmp_path / "sdp.prom"
    options = ["--report", report, "--prometheus-file", scrape, "--set", "ring_bytes=65536"]
    with ends(ladder, *options) as (process, asking, answering):
        full = lambda pid: stat(ladder, pid)["processes"][0]["connections"][-1]["messages"]["ring_full"]
        before = full(asking)["own"]
        os.kill(answering, signal.SIGSTOP)
        try:
            process.stdin.write(f"{1 << 20}\n")
            process.stdin.flush()
            wait_until(lambda: full(asking)["own"] > before, "a full ring")
            own = full(asking)
            assert full(answering)["peer"] >= own["own"] and own["peer"] == full(answering)["own"]
        finally:
            os.kill(answering, signal.SIGCONT)
        assert process.stdout.readline() == "done\n"
    said = json.loads(report.read_text(encoding="utf-8"))
    hold("report", said)
    assert said["messages"]["ring_full"] >= own["own"]
    assert sum(size["count"] for size in said["messages"]["sizes"]) == said["transfers"]["bcopy"]
    found = metrics(scrape.read_text(encoding="utf-8"))
    counts = [value for labels, value in found["sdp_message_bytes_bucket"] if labels["le"] == "+Inf"]
    assert counts == [said["transfers"]["bcopy"]] == [found["sdp_message_bytes_count"][0][1]]
    assert found["sdp_message_bytes_sum"][0][1] == said["bytes"]["sdp_sent"]
    assert found["sdp_ring_full_total"][0][1] == said["messages"]["ring_full"]


def test_a_reset_is_remembered_by_its_user(ladder, tmp_path):
    """Nothing remembered, a folder of others, rubbish in the file: said, and no figures."""
    env = environment(XDG_RUNTIME_DIR=str(tmp_path))
    done = sdp(ladder, "stat", "--since-reset", env=env)
    assert done.returncode == 1 and "sdp stat --reset" in done.stderr
    assert sdp(ladder, "stat", "--reset", env=env).returncode == 0
    file = tmp_path / "sdp/reset.json"
    assert file.stat().st_mode & 0o777 == 0o600
    for rubbish in (b"", b"\xff{", b"[]", b'{"form": 9, "at_ns": 0, "processes": []}',
                    b'{"form": 1, "at_ns": 99999999999999999999999, "processes": []}'):
        file.write_bytes(rubbish)
        done = sdp(ladder, "stat", "--since-reset", env=env)
        assert done.returncode == 1 and "--since-reset" in done.stderr and done.stdout == "", rubbish
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert sdp(ladder, "stat", "--since-reset", env=env).returncode == 1
    file.parent.chmod(0o777)
    for option in ("--reset", "--since-reset"):
        done = sdp(ladder, "stat", option, env=env)
        assert done.returncode == 1 and "not a folder of this user's" in done.stderr
