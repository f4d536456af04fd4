"""`sdpnetstat`: options, columns and states of the historic tool; the kernel asked by sock_diag and by /proc."""

import itertools
import os
import re
import socket
import subprocess

import pytest

from support.procs import wait_until
from support.stage import python
from tools.sdp import environment
from tools.test_doctor import refuse
from tools.test_tools import pair

pytestmark = pytest.mark.quick

LIMIT_S = 60
UNREAD = 5000
SOCKET = 41


def netstat(ladder, *arguments, **options):
    """Its lines: the title, the heads of the columns, the rest as words."""
    done = subprocess.run(
        [ladder.artifacts.dir / "sdpnetstat", *arguments], capture_output=True, check=True, text=True,
        timeout=LIMIT_S, env=environment(), **options,
    )
    title, heads, *lines = done.stdout.splitlines()
    return title, heads, [line.split() for line in lines]


def of_ports(lines, *ports):
    """The lines of these local ports."""
    return [line for line in lines if any(line[3].endswith(f":{port}") for port in ports)]


def test_titles_and_columns_go_by_the_options(ladder):
    """In every order and combination, together and apart."""
    for flags in itertools.chain(("-Sn", "-Snl", "-Sna"), ("-tn", "-tnl", "-tna"), ("-n", "-nl", "-an")):
        title, heads, lines = netstat(ladder, flags)
        which = "only servers" if "l" in flags else "servers and established" if "a" in flags else "w/o servers"
        assert title == f"Active Internet connections ({which})"
        assert heads == "Proto Recv-Q Send-Q Local Address           Foreign Address         State"
        states = {line[5] for line in lines}
        assert "LISTEN" not in states or "l" in flags or "a" in flags
        assert "l" not in flags or states <= {"LISTEN"}
        protos = {line[0] for line in lines}
        assert "S" not in flags or protos <= {"sdp"}
        assert "t" not in flags or protos <= {"tcp", "tcp6"}
    _, heads, _ = netstat(ladder, "-Snep")
    assert heads.split() == [
        "Proto", "Recv-Q", "Send-Q", "Local", "Address", "Foreign", "Address", "State", "User", "Inode",
        "PID/Program", "name",
    ]
    assert netstat(ladder, "-S", "-a", "-n", "-e", "-e", "-p", "--numeric-hosts")[1] == heads


def test_the_kernels_sockets_are_listed_once_with_their_owner(ladder):
    """A connection with a lane as sdp; one without as tcp; the carrier of the first not again."""
    with pair(ladder, "--no-config") as (parent, child, port, other), \
            socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        wait_until(lambda: of_ports(netstat(ladder, "-Sn")[2], port), "the lane")
        _, _, lines = netstat(ladder, "-anep")
        found = of_ports(lines, port, other)
        established = [line for line in found if line[5] == "ESTABLISHED"]
        assert [line[0] for line in established] == ["sdp", "sdp"], found
        assert {line[8].split("/")[0] for line in established} == {str(parent), str(child)}
        assert all(line[6] == "0" or line[6].isdigit() for line in established)
        inodes = {line[7] for line in established}
        links = {os.readlink(f"/proc/{pid}/fd/{fd}") for pid in (parent, child) for fd in os.listdir(f"/proc/{pid}/fd")}
        assert {f"socket:[{inode}]" for inode in inodes} <= links
        (line,) = of_ports(lines, six.getsockname()[1])
        assert line[0] == "tcp6" and line[8].startswith(f"{os.getpid()}/")
        # The kernel's own tool goes on showing the carrier.
        seen = subprocess.run(["ss", "-tn"], capture_output=True, text=True, check=True).stdout
        assert len(re.findall(rf":{port}\s", seen)) == 2


STATES = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
kept = []
def connect():
    s = socket.create_connection(("127.0.0.1", port))
    t, _ = listener.accept()
    for _ in range(40):
        s.sendall(b"x"); t.recv(1); t.sendall(b"y"); s.recv(1)
    return s, t
s, t = connect()                       # both stay
s2, t2 = connect(); s2.shutdown(socket.SHUT_WR); t2.recv(1)
s3, t3 = connect(); s3.close(); t3.recv(1); t3.close()
print(port, s2.getsockname()[1], s3 and t3 and port, flush=True)
sys.stdin.read()
"""


def test_states_are_those_of_netstat(ladder):
    """Half-closed ends on lanes, and what the kernel keeps of one that is over."""
    command = [ladder.artifacts.sdp, "run", "--no-config", "--", python(), "-c", STATES]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        port, half, _ = process.stdout.readline().split()
        _, _, lines = netstat(ladder, "-an")
        states = sorted(line[5] for line in of_ports(lines, port))
        assert states.count("ESTABLISHED") == 1 and "CLOSE_WAIT" in states and "LISTEN" in states, states

        def half_closed():
            # The other end may acknowledge the FIN up to 40 ms late.
            return {line[5] for line in of_ports(netstat(ladder, "-an")[2], half)} == {"FIN_WAIT2"}

        wait_until(half_closed, "the FIN is acknowledged")
        assert any(line[4].endswith(f":{port}") and line[5] == "TIME_WAIT" for line in lines), lines
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


def test_queues_hold_what_nobody_has_read(ladder):
    """Of a lane, and of a connection that a rule keeps on TCP."""
    for options, proto in (["--no-config"], "sdp"), (["--tcp"], "tcp"):
        with pair(ladder, *options) as (_, _, port, other):
            wanted = [[proto, str(UNREAD), "0"], [proto, "0", str(UNREAD)]]
            flags = "-Sn" if proto == "sdp" else "-tn"

            def found():
                lines = of_ports(netstat(ladder, flags)[2], port, other)
                return sorted((line[:3] for line in lines), reverse=True)

            if proto == "tcp":
                # The kernel's own view: what was sent is received, and not read.
                wanted[1] = [proto, "0", "0"]
            wait_until(lambda: found() == wanted, f"{wanted}")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
def test_other_network_namespaces(ladder):
    """A pair in one of its own: its states are looked up there."""
    wrapper = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    command = [*wrapper, ladder.artifacts.sdp, "run", "--no-config", "--", python(), "-c", STATES]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        port, half, _ = process.stdout.readline().split()

        def half_closed():
            lines = netstat(ladder, "-San")[2]
            return {line[5] for line in of_ports(lines, half)} == {"FIN_WAIT2"}

        wait_until(half_closed, "the FIN is acknowledged")
        lines = netstat(ladder, "-San")[2]
        assert "CLOSE_WAIT" in {line[5] for line in of_ports(lines, port)}
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_without_sock_diag_the_answer_is_the_same(ladder):
    """A filter that refuses every new socket: /proc is read."""
    with pair(ladder, "--no-config") as (_, _, port, other):
        wait_until(lambda: of_ports(netstat(ladder, "-Sn")[2], port), "the lane")
        asked = of_ports(netstat(ladder, "-ane")[2], port, other)
        read = of_ports(netstat(ladder, "-ane", preexec_fn=refuse(SOCKET))[2], port, other)
        assert sorted(asked) == sorted(read) and len(asked) == 4  # a listener takes both


def test_it_goes_on_until_nobody_reads(ladder):
    """Option -c: a table each second; over when the reader has gone."""
    with subprocess.Popen(
        [ladder.artifacts.dir / "sdpnetstat", "-Snc"], stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        titles = 0
        while titles < 2:
            titles += process.stdout.readline().startswith("Active Internet")
        process.stdout.close()
        assert process.wait(10) == 0


def test_what_it_does_not_do_is_said(ladder):
    """Routes and the like: an error, and where to look."""
    done = subprocess.run([ladder.artifacts.dir / "sdpnetstat", "-r"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "-r" in done.stderr
    done = subprocess.run([ladder.artifacts.dir / "sdpnetstat", "--help"], capture_output=True, text=True, check=True)
    assert "see ip and ss" in done.stdout
