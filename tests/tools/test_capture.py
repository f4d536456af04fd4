"""`sdp capture`: what goes over shared memory, as tshark decodes it."""

import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest

from support.procs import wait_until
from support.stage import python
from tools.sdp import environment, sdp

LIMIT_S = 60
EARLY = ["--set", "promote_calls=0", "--set", "promote_bytes=0"]
# A server in the parent, a client in a child. Each waits for a line of standard input before it goes on.
HTTP = """
import http.client, http.server, os, sys, threading
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b"page " + self.path.encode() * 50
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = http.client.HTTPConnection(*server.server_address)
def ask(path):
    client.request("GET", path)
    return client.getresponse().read()
for i in range(30):
    ask(f"/before/{i}")
print(server.server_address[1], flush=True)
for i in range(40):
    # So few at a time that the first page of a ring has them all, until they are captured.
    if i % 2 == 0:
        sys.stdin.readline()
    ask(f"/asked/{i}")
    if i % 2 == 1:
        print("done", flush=True)
sys.stdin.readline()
"""
# Sends pieces, each answered by one byte if asked for; says how many bytes the other end read.
STREAM = """
import os, socket, sys
pieces, size, is_answered = map(int, sys.argv[1:])
listener = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
def exactly(s, n):
    while n:
        n -= len(s.recv(n))
for i in range(50):
    sender.sendall(b"a"); exactly(receiver, 1); receiver.sendall(b"b"); exactly(sender, 1)
print(listener.getsockname()[1], flush=True)
sys.stdin.readline()
if os.fork() == 0:
    for i in range(pieces):
        exactly(receiver, size)
        if is_answered:
            receiver.sendall(b"b")
    os._exit(0)
for i in range(pieces):
    sender.sendall(bytes([65 + i % 26]) * size)
    if is_answered:
        exactly(sender, 1)
os.wait()
print("done", flush=True)
for _ in sys.stdin:
    sender.sendall(b"last")
    exactly(receiver, 4)
    print("done", flush=True)
"""


@contextmanager
def running(ladder, program, *arguments):
    """A program under the library, up to its first line; (process, port)."""
    command = [ladder.artifacts.sdp, "run", *EARLY, "--", python(), "-c", program, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield process, int(process.stdout.readline())
            process.stdin.close()
            assert process.wait(LIMIT_S) == 0
        except BaseException:
            process.kill()
            raise


def goes_on(process):
    """One step further, until that is over."""
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@contextmanager
def capturing(ladder, *arguments, out=subprocess.DEVNULL):
    """A capture; the list has what it says at its end."""
    command = [ladder.artifacts.sdp, "capture", *map(str, arguments)]
    said = []
    with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            yield process, said
            process.send_signal(signal.SIGINT)
            said += process.communicate(timeout=LIMIT_S)[1].splitlines()
            assert process.returncode == 0, said
        except BaseException:
            process.kill()
            raise


def tshark(path, *words):
    """What tshark prints of a capture."""
    done = subprocess.run(["tshark", "-r", path, *words], capture_output=True, check=True, timeout=LIMIT_S, text=True)
    return done.stdout.splitlines()


def followed(path):
    """The payload of both directions of the one connection, in order."""
    lines = tshark(path, "-q", "-z", "follow,tcp,raw,0")
    start = next(i for i, line in enumerate(lines) if line.startswith("Node 1"))
    return b"".join(bytes.fromhex(line.strip()) for line in lines[start + 1:] if not line.startswith("==="))


def has(path, word):
    """Whether a file has a word yet."""
    return lambda: path.exists() and word in path.read_bytes()


def test_an_http_conversation_is_followed(ladder, tmp_path):
    """Requests and answers in their order, with the carrier's ports; nothing is missing."""
    path = tmp_path / "http.pcapng"
    with running(ladder, HTTP) as (process, port):
        with capturing(ladder, "-w", path, "port", port) as (_, said):
            # The ring still has the last of what went before.
            wait_until(has(path, b"/before/29"), "the connection is followed")
            for i in range(1, 40, 2):
                goes_on(process)
                wait_until(has(path, b"page /asked/%d/asked" % i), "the page")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "of 1 connections" in said[0] and "overwritten" not in said[0], said
    fields = ["-e", "http.request.uri", "-e", "http.response.code", "-e", "tcp.srcport", "-e", "tcp.dstport"]
    lines = tshark(path, "-d", f"tcp.port=={port},http", "-Y", "http", "-T", "fields", *fields)
    rows = [line.split("\t") for line in lines]
    asked = [f"/asked/{i}" for i in range(40)]
    assert [row[0] for row in rows if row[0].startswith("/asked")] == asked
    turns = rows[next(i for i, row in enumerate(rows) if row[0] == asked[0]):]
    assert [bool(row[0]) for row in turns] == [True, False] * 40
    assert {row[3] for row in turns if row[0]} == {str(port)} == {row[2] for row in turns if row[1]}
    for word in asked:
        assert f"page {word}{word}".encode() in followed(path)
    assert not tshark(path, "-Y", "tcp.analysis.lost_segment and tcp.len > 0 and frame.number > 2")
    bad = tshark(path, "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-Y",
                 "tcp.checksum.status == 0 or ip.checksum.status == 0 or _ws.malformed")
    assert not bad, bad


def test_a_redis_conversation_is_followed(ladder, tmp_path):
    """Debian's server and client, pcapng by a pipe; the text says the same."""
    path, listing = tmp_path / "redis.pcapng", tmp_path / "text"
    with subprocess.Popen(
        [ladder.artifacts.sdp, "run", *EARLY, "--", "redis-server", "--port", "0", "--unixsocket", "", "--save", "",
         "--dir", tmp_path, "--bind", "127.0.0.1", "--port", str(free_port())],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(),
    ) as server:
        try:
            port = None
            while port is None:
                line = server.stdout.readline()
                assert line, "the server ended"
                found = re.search(r"Running mode=standalone, port=(\d+)", line)
                port = found and found[1]
            client = [ladder.artifacts.sdp, "run", *EARLY, "--", "redis-cli", "-h", "127.0.0.1", "-p", port]
            with open(path, "wb") as to, open(listing, "wb") as lines:
                with capturing(ladder, "-w", "-", "host", "127.0.0.1", "and", "port", port, out=to) as (_, said), \
                        capturing(ladder, "port", port, out=lines):
                    with subprocess.Popen(client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                          env=environment()) as asking:
                        for i in range(60):
                            asking.stdin.write(f"set key-{i} value-{i}\nget key-{i}\n")
                            asking.stdin.flush()
                            if i >= 19:
                                # So few at a time that the first page of a ring has them all.
                                wait_until(has(path, b"$%d\r\nvalue-%d\r\n" % (len(f"value-{i}"), i)), "an answer")
                        wait_until(lambda: listing.stat().st_size, "the other one follows it, too")
                        asking.stdin.close()
                        assert asking.wait(LIMIT_S) == 0
        finally:
            server.terminate()
            server.stdout.read()
    assert "overwritten" not in said[0], said
    conversation = followed(path)
    at = conversation.index(b"key-31\r\n")
    for i in range(31, 60):
        key, value = f"key-{i}".encode(), f"value-{i}".encode()
        length = str(len(value)).encode()
        turns = [b"*3\r\n$3\r\nset\r\n$6\r\n" + key, value, b"+OK\r\n", b"*2\r\n$3\r\nget\r\n$6\r\n" + key,
                 b"$" + length + b"\r\n" + value]
        at = conversation.index(b"*3", at) if i > 31 else conversation.rindex(b"*3", 0, at)
        for turn in turns:
            at = conversation.index(turn, at) + len(turn)
    assert re.search(rf"127\.0\.0\.1:\d+ > 127\.0\.0\.1:{port}: seq \d+, ack \d+, \d+ bytes", listing.read_text())


def free_port():
    """One that nobody has at this moment."""
    import socket
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def told(said):
    """(payload bytes, bytes at most that were overwritten, segments left out)."""
    (captured,) = re.findall(r"with (\d+) bytes", said[0])
    lost = re.findall(r"of at most (\d+) bytes were overwritten", said[0])
    dropped = re.findall(r"(\d+) segments were left out", said[0])
    return int(captured), int(lost[0]) if lost else 0, int(dropped[0]) if dropped else 0


def test_what_is_overwritten_is_a_gap(ladder, tmp_path):
    """A capture that stands still while sixteen rings go by says how much it has not seen; tshark sees that, too."""
    path = tmp_path / "gap.pcapng"
    pieces, size = 1024, 16384
    with running(ladder, STREAM, pieces, size, 0) as (process, port):
        with capturing(ladder, "-w", path, "port", port) as (capture, said):
            wait_until(lambda: path.exists() and len(tshark(path)) > 1, "the connection is followed")
            capture.send_signal(signal.SIGSTOP)
            goes_on(process)
            capture.send_signal(signal.SIGCONT)
            # The first may go by before the capture looks again.
            wait_until(lambda: goes_on(process) or has(path, b"last")(), "what came behind the gap")
    captured, lost, dropped = told(said)
    assert lost > 10 << 20 and dropped == 0, said
    assert captured < pieces * size < captured + lost, said
    assert tshark(path, "-Y", "tcp.analysis.lost_segment")


def test_a_slow_reader_loses_segments_that_are_counted(ladder, tmp_path):
    """Memory is bounded; the stream is not held up."""
    reader, writer = os.pipe()
    pieces, size = 2048, 32768
    try:
        with running(ladder, STREAM, pieces, size, 1) as (process, port):
            with capturing(ladder, "--buffer", "1", "-w", "-", "port", port, out=writer) as (capture, said):
                os.close(writer)
                writer = None
                # It follows the connection when the file has begun and a segment is in it.
                head = b""
                while len(head) < 400:
                    head += os.read(reader, 400)
                assert head.startswith(b"\n\r\r\n")
                goes_on(process)
                path = tmp_path / "slow.pcapng"
                with open(path, "wb") as to:
                    to.write(head)
                    to.flush()
                    copier = subprocess.Popen(["cat"], stdin=reader, stdout=to)
                os.close(reader)
                reader = None
                wait_until(lambda: memory_mib(capture.pid) < 64, "memory is bounded")
            assert copier.wait(LIMIT_S) == 0
    finally:
        for fd in (reader, writer):
            if fd is not None:
                os.close(fd)
    captured, lost, dropped = told(said)
    # On a busy machine the capture is itself the slow one: it comes when messages are overwritten.
    assert dropped + lost > 0 and captured < pieces * size, said
    assert len(tshark(path)) == int(said[0].split()[2]), said


def memory_mib(pid):
    """What a process has in memory."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096 >> 20


def test_only_the_owner_and_root(ladder, tmp_path):
    """Another user sees no connection, and is told of one process that it may not look at."""
    user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]
    with running(ladder, HTTP) as (process, port):
        (pid,) = [p["pid"] for p in json.loads(sdp(ladder, "stat", "--json").stdout)["processes"]
                  if any(c["local"].endswith(f":{port}") for c in p["connections"])]
        done = sdp(ladder, "capture", "--pid", pid, before=user)
        assert done.returncode == 1 and not done.stdout and str(pid) in done.stderr, done
        for _ in range(20):
            goes_on(process)


@pytest.mark.parametrize("words", [["tcp"], ["port", "x"], ["port", "1", "or", "port", "2"], ["host"]])
def test_filters_that_are_none(ladder, words):
    """They are named; nothing is captured."""
    done = sdp(ladder, "capture", *words)
    assert done.returncode == 1 and "host ADDRESS" in done.stderr, done


def test_output_that_cannot_be_written(ladder):
    done = sdp(ladder, "capture", "-w", "/nowhere/file")
    assert done.returncode == 1 and "/nowhere/file" in done.stderr, done
    done = sdp(ladder, "capture", "-w", "/dev/full")
    assert done.returncode == 1 and "No space left" in done.stderr, done
    assert shutil.which("tshark"), "tests/install-packages tshark"
