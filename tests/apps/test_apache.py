"""Apache with mpm_prefork: keep-alive, a request per connection, CGI, graceful restart; curl and ab.

Apache is started by root and its workers change their user, as where it is installed; its clients are somebody else's. In one
scenario everything is of one user, the web server's.
"""

import hashlib
import os
import re
import signal

from support import UNFLIPPED, check, placements
from support.procs import wait_until

BIG = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(16_000))
# Alone on its connection, so that most of it goes its way after the connection has earned a lane.
HUGE = BIG * 16
SMALL = b"hello, world\n" * 80
MODULES = "/usr/lib/apache2/modules"
# As root Apache insists on workers of another user.
USER = "www-data" if os.geteuid() == 0 else None

# Eight workers from the start: a client never waits for the master to make another one. The time that
# an idle connection is kept is above every wait of the tests.
CONFIG = """
ServerRoot "{dir}"
ServerName localhost
PidFile "{dir}/pid"
ErrorLog "{dir}/error.log"
Listen 127.0.0.1:{port}
LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule alias_module {modules}/mod_alias.so
LoadModule cgi_module {modules}/mod_cgi.so
{user}
StartServers 8
MinSpareServers 4
MaxSpareServers 10
MaxRequestWorkers 20
KeepAlive On
KeepAliveTimeout 60
MaxKeepAliveRequests 0
EnableSendfile On
DocumentRoot "{dir}/html"
Alias /generation "{dir}/html/generation{generation}"
ScriptAlias /sum "{dir}/sum"
ScriptAlias /repeat "{dir}/repeat"
"""

# What it reads, summed; and an answer that is larger than any buffer on the way.
SUM = """#!/bin/sh
printf 'Content-Type: text/plain\\r\\n\\r\\n'
sha256sum
"""
REPEAT = """#!/bin/sh
printf 'Content-Type: application/octet-stream\\r\\n\\r\\n'
exec cat big
"""


def start(stage, user=None):
    """Starts Apache; (program, base of its addresses, a function that sets the generation)."""
    html = stage.dir / "html"
    html.mkdir()
    (html / "big").write_bytes(BIG)
    (html / "huge").write_bytes(HUGE)
    (html / "small").write_bytes(SMALL)
    for number in (1, 2):
        (html / f"generation{number}").write_text(str(number))
    for name, text in (("sum", SUM), ("repeat", REPEAT)):
        script = stage.dir / name
        script.write_text(text)
        script.chmod(0o755)
    (stage.dir / "big").symlink_to(html / "big")
    port = stage.port()

    def configure(generation):
        text = CONFIG.format(dir=stage.dir, port=port, modules=MODULES, generation=generation,
                             user="User www-data\nGroup www-data" if USER else "")
        (stage.dir / "apache.conf").write_text(text)

    configure(1)
    # It ends by a signal to its process group, which would be ours.
    argv = ["setsid", "apache2", "-D", "FOREGROUND", "-f", stage.dir / "apache.conf"]
    server = stage.server("apache", argv, port=port, user=user or USER and "root", stop=signal.SIGTERM)
    return server, f"http://127.0.0.1:{port}", configure


def curl(stage, *words, user=None, **options):
    """What curl writes."""
    return stage.client("curl", ["curl", "-sS", *words], user=user, **options).out


def ab(stage, url, *options, requests, length, user=None):
    """ab's answer without its times: every request was answered, with the same length.

    With `-k` it sends more requests than it waits for, so that not all that is sent is read.
    """
    argv = ["ab", "-q", "-s", "60", "-n", requests, *options, url]
    text = stage.client("ab", argv, user=user).text
    figures = dict(re.findall(r"^([\w -]+):\s+(\d+)\b", text, re.M))
    wanted = {"Complete requests": requests, "Failed requests": 0, "HTML transferred": requests * length}
    found = {name: int(figures.get(name, -1)) for name in wanted}
    assert found == wanted and "Non-2xx" not in text, text
    return found


def digests(*bodies):
    """Checksums of answers."""
    return [hashlib.sha256(body).hexdigest() for body in bodies]


def pages(stage, user=None):
    """Files over kept connections: many small ones, large ones, a part of one."""
    server, base, _ = start(stage, user)
    many = curl(stage, f"{base}/small?[1-300]", user=user)
    large = curl(stage, f"{base}/big?[1-60]", user=user)
    part = curl(stage, "-r", "1000-999999", f"{base}/big", user=user)
    assert many == SMALL * 300
    assert large == BIG * 60
    assert part == BIG[1000:1000000]
    small = f"{base}/small"
    load = ab(stage, small, "-k", "-c", "6", requests=6000, length=len(SMALL), user=user)
    stage.stop(server)
    return digests(many, large, part) + [load]


def one_user(stage):
    """The same where both ends are of one user."""
    return pages(stage, USER)


def single(stage):
    """One small request on each connection: none is worth a lane."""
    server, base, _ = start(stage)
    load = ab(stage, f"{base}/small", "-c", "6", requests=300, length=len(SMALL))
    stage.stop(server)
    return load


def large(stage):
    """One large request on each connection."""
    server, base, _ = start(stage)
    load = ab(stage, f"{base}/huge", "-c", "2", requests=6, length=len(HUGE))
    each = [curl(stage, f"{base}/huge") for _ in range(3)]
    assert [body == HUGE for body in each] == [True] * 3
    stage.stop(server)
    return digests(*each) + [load]


def scripts(stage):
    """CGI: what a child of the worker reads and writes crosses the worker's connection."""
    server, base, _ = start(stage)
    post = ["-H", "Expect:", "--data-binary", "@-", f"{base}/sum?[1-20]"]
    summed = curl(stage, *post, stdin=BIG).decode()
    large = curl(stage, f"{base}/repeat?[1-30]")
    few = ab(stage, f"{base}/sum", "-k", "-c", "2", requests=20, length=68)
    assert summed == f"{hashlib.sha256(BIG).hexdigest()}  -\n" * 20
    assert large == BIG * 30
    stage.stop(server)
    return [summed, few] + digests(large)


def graceful(stage):
    """Load while the workers are replaced: no request fails and the new generation answers."""
    server, base, configure = start(stage)
    argv = ["curl", "-sS", f"{base}/big?[1-100]", "--retry", "0"]
    running = [stage.start("curl", argv) for _ in range(2)]
    configure(2)
    os.kill(int((stage.dir / "pid").read_text()), signal.SIGUSR1)
    ask = f"{base}/generation"
    wait_until(lambda: curl(stage, ask, plain=True) == b"2", "the new workers", 60)
    bodies = [stage.finish(client).out for client in running]
    assert [body == BIG * 100 for body in bodies] == [True, True]
    after = curl(stage, f"{base}/big", f"{base}/generation")
    assert after == BIG + b"2"
    stage.stop(server)
    return digests(*bodies, after)


@placements()
def test_pages(ladder, placement):
    """Every page is that of plain TCP, over connections that are kept."""
    check(ladder, "apache-pages", pages, placement, quiet=False)


@placements()
def test_one_user(ladder, placement):
    """Likewise where both ends are of one user."""
    check(ladder, "apache-user", one_user, placement, quiet=False)


@placements(*UNFLIPPED)
def test_single_requests(ladder, placement):
    """Likewise with a connection for each request."""
    check(ladder, "apache-single", single, placement)


@placements()
def test_single_large_requests(ladder, placement):
    """Likewise, with answers that are worth a lane."""
    check(ladder, "apache-large", large, placement)


@placements()
def test_scripts(ladder, placement):
    """Likewise for what scripts read and write."""
    check(ladder, "apache-cgi", scripts, placement, quiet=False)


@placements()
def test_graceful_restart(ladder, placement):
    """A graceful restart under load loses no byte."""
    check(ladder, "apache-graceful", graceful, placement, quiet=False)
