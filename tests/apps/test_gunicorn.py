"""Gunicorn: forked workers, one request per connection (sync) or kept ones (gthread); curl and ab."""

import hashlib
import os
import re
import signal
from pathlib import Path

from support import check, placements
from support.procs import wait_until

DRIVERS = Path(__file__).parent / "drivers"
BIG = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(16_000))
# Alone on its connection, so that most of it goes its way after the connection has earned a lane.
HUGE = BIG * 64


def start(stage, kind, *options):
    """Starts Gunicorn with three workers of a kind; (program, base of its addresses)."""
    (stage.dir / "big").write_bytes(BIG)
    (stage.dir / "huge").write_bytes(HUGE)
    port = stage.port()
    argv = ["gunicorn", "--chdir", DRIVERS, "--worker-tmp-dir", stage.dir, "--pid", stage.dir / "pid"]
    argv += ["--bind", f"127.0.0.1:{port}", "--workers", "3", "--worker-class", kind, *options]
    argv += ["--timeout", "90", "--graceful-timeout", "15", "wsgi:application"]
    environment = {"FOLDER": str(stage.dir), "PYTHONDONTWRITEBYTECODE": "1"}
    server = stage.server("gunicorn", argv, port=port, env=environment)
    return server, f"http://127.0.0.1:{port}"


def curl(stage, *words, **options):
    """What curl writes."""
    return stage.client("curl", ["curl", "-sS", *words], **options).out


def post(stage, address, data):
    """What curl writes after having sent data."""
    return curl(stage, "-H", "Expect:", "--data-binary", "@-", address, stdin=data)


def digests(*bodies):
    """Checksums of answers."""
    return [hashlib.sha256(body).hexdigest() for body in bodies]


def single(stage):
    """A connection for each request: small answers, chunks, a file by sendfile, uploads."""
    server, base = start(stage, "sync")
    small = curl(stage, f"{base}/chunks/small?[1-50]")
    chunks = curl(stage, f"{base}/chunks/huge")
    files = curl(stage, f"{base}/file/huge")
    summed = post(stage, f"{base}/sum", HUGE)
    assert small == b"small\n" * 50
    assert [part == HUGE for part in (chunks, files)] == [True, True]
    assert summed == hashlib.sha256(HUGE).hexdigest().encode()
    stage.stop(server)
    return digests(small, chunks, files, summed)


def kept(stage):
    """Many requests on each connection, by threads of the workers."""
    server, base = start(stage, "gthread", "--threads", "2", "--keep-alive", "60")
    chunks = curl(stage, f"{base}/chunks/big?[1-30]")
    files = curl(stage, f"{base}/file/big?[1-30]")
    summed = post(stage, f"{base}/sum?[1-20]", BIG)
    # ab sends more requests than it waits for, so that not all that is sent is read.
    argv = ["ab", "-q", "-s", "60", "-k", "-n", "1500", "-c", "3", f"{base}/chunks/small"]
    load = stage.client("ab", argv).text
    found = dict(re.findall(r"^(Complete requests|Failed requests):\s+(\d+)$", load, re.M))
    assert found == {"Complete requests": "1500", "Failed requests": "0"}, load
    assert [part == BIG * 30 for part in (chunks, files)] == [True, True]
    assert summed == hashlib.sha256(BIG).hexdigest().encode() * 20
    stage.stop(server)
    return digests(chunks, files, summed) + [found]


def reload(stage):
    """Load while the workers are replaced: no request fails, and other processes answer."""
    server, base = start(stage, "sync")
    ask = lambda: curl(stage, f"{base}/pid", plain=True)
    before = {ask() for _ in range(10)}
    running = [
        stage.start("curl", ["curl", "-sS", "--retry", "0", f"{base}/file/huge?[1-2]"])
        for _ in range(2)
    ]
    os.kill(int((stage.dir / "pid").read_text()), signal.SIGHUP)
    wait_until(lambda: ask() not in before, "the new workers", 60)
    bodies = [stage.finish(client).out for client in running]
    assert [part == HUGE * 2 for part in bodies] == [True, True]
    stage.stop(server)
    return digests(*bodies)


@placements()
def test_single_requests(ladder, placement):
    """Every answer is that of plain TCP, with a connection for each request."""
    check(ladder, "gunicorn-single", single, placement)


@placements()
def test_kept_connections(ladder, placement):
    """Likewise over connections that are kept."""
    check(ladder, "gunicorn-kept", kept, placement, quiet=False)


@placements()
def test_reload(ladder, placement):
    """A reload under load loses no byte."""
    check(ladder, "gunicorn-reload", reload, placement, quiet=False)
