"""xinetd: its internal echo, services that are executed on the connection, and telnet."""

import os
import pwd
import shutil
from pathlib import Path

from support import UNFLIPPED, check, placements
from support.procs import wait_until
from support.stage import python

DRIVER = Path(__file__).parent / "drivers" / "echo_client.py"

DEFAULTS = "defaults\n{{\n log_type = FILE {dir}/xinetd.log\n instances = UNLIMITED\n}}\n"
SERVICE = """
service {name}
{{
 type = UNLISTED
 port = {port}
 bind = 127.0.0.1
 socket_type = stream
 protocol = tcp
 wait = no
 user = {user}
 server = {program}{arguments}
 cps = 1000 1
}}
"""
INTERNAL = """
service echo
{{
 type = INTERNAL UNLISTED
 id = echo-stream
 port = {port}
 bind = 127.0.0.1
 socket_type = stream
 protocol = tcp
 wait = no
 user = {user}
}}
"""
SCRIPT = """#!/bin/bash
read -r first
echo "got $first"
while read -r line; do echo "line $line"; done
"""


def start(stage, *services):
    """Starts xinetd with the services (name, program, arguments); their ports by name."""
    mine = pwd.getpwuid(os.geteuid()).pw_name
    text = DEFAULTS.format(dir=stage.dir)
    ports = {}
    for name, program, arguments in services:
        ports[name] = stage.port()
        form = SERVICE if program else INTERNAL
        # The internal services are root's as they are installed.
        user = (program and stage.servant("xinetd")) or mine
        given = f"\n server_args = {arguments}" if arguments else ""
        text += form.format(name=name, port=ports[name], user=user, program=program,
                            arguments=given)
    conf = stage.dir / "xinetd.conf"
    conf.write_text(text)
    argv = ["xinetd", "-dontfork", "-f", conf, "-pidfile", stage.dir / "pid"]
    server = stage.server("xinetd", argv, user=stage.servant("xinetd") and "root", port=ports[services[-1][0]])
    return server, ports


def internal(stage):
    """The echo that xinetd's own child speaks: forked, not executed."""
    server, ports = start(stage, ("echo", None, ""))
    text = stage.client("client", [python(), DRIVER, str(ports["echo"]), "3000000"]).text
    stage.stop(server)
    return text


def by_telnet(stage):
    """telnet talks to the echo until every line is back."""
    server, ports = start(stage, ("echo", None, ""))
    lines = b"".join(b"line %d of the conversation\n" % i for i in range(100_000))
    read_end, write_end = os.pipe()
    client = stage.start("telnet", ["telnet", "127.0.0.1", ports["echo"]],
                         stdin=os.fdopen(read_end, "rb"))
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(lines)
        pipe.flush()
        # telnet leaves at the end of its input, whatever is still on the way.
        echoed = lambda: client.output().replace(b"\r\n", b"\n").endswith(lines)
        wait_until(echoed, "the echo of every line", 30)
    done = stage.finish(client, ok=(0, 1))
    stage.stop(server)
    return done.out.replace(b"\r\n", b"\n").partition(b"line 0 ")[2]


def executed(stage):
    """cat, executed on the connection by the child."""
    server, ports = start(stage, ("cat", "/bin/cat", "-u"))
    text = stage.client("client", [python(), DRIVER, str(ports["cat"]), "3000000"]).text
    stage.stop(server)
    return text


def static(stage):
    """A static cat, which cannot be preloaded, and a shell that reads the connection by bytes."""
    busybox = stage.dir / "busybox"
    shutil.copy2(shutil.which("busybox"), busybox)
    script = stage.dir / "script"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    server, ports = start(stage, ("static", busybox, "cat"), ("script", script, ""))
    echo = stage.client("client", [python(), DRIVER, str(ports["static"]), "300000"]).text
    spoken = stage.client("client", [python(), DRIVER, str(ports["script"]), "lines"]).text
    stage.stop(server)
    return echo, spoken


@placements()
def test_internal_echo(ladder, placement):
    """A child that only forked echoes every byte."""
    check(ladder, "xinetd-echo", internal, placement)


@placements(*UNFLIPPED)
def test_telnet(ladder, placement):
    """What telnet shows is what it shows over plain TCP."""
    check(ladder, "xinetd-telnet", by_telnet, placement)


@placements(*UNFLIPPED)
def test_executed(ladder, placement):
    """A dynamic program executed on the connection echoes every byte."""
    check(ladder, "xinetd-cat", executed, placement)


@placements(*UNFLIPPED)
def test_static(ladder, placement):
    """A static program gets every byte over TCP."""
    check(ladder, "xinetd-static", static, placement, quiet=False)
