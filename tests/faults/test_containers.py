"""Connections between network namespaces, over SDP by a directory that both ends see.

Two namespaces behind a bridge are the containers; a client reaches the server by its address, or by one that is translated on the
way. Ends are of different users. The counters of both ends say by which lane payload went.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import weakref
from pathlib import Path

import pytest

from support.containers import SERVED, WAYS, Containers
from support.procs import Program, wait_until
from support.report import Report
from support.stage import Artifacts, python
from support.users import words

from .harness import PROGRAMS, TARGET
from .programs.across import content

ALWAYS = {"promote_calls": 0, "promote_bytes": 0}
# Of the payload that both ends counted; what was sent before the ends had met went by TCP.
SHARE = 0.75
LIMIT_S = 60
SERVER, CLIENT = "www-data", "games"


@pytest.fixture(scope="module", name="artifacts")
def made_artifacts():
    """Library, tools and this suite's programs where every user can read them."""
    artifacts = Artifacts(TARGET, PROGRAMS)
    yield artifacts
    artifacts.close()


@pytest.fixture(scope="module", name="net")
def made_containers():
    """Two containers and a directory."""
    if not Containers.may_be():
        pytest.skip("no network namespaces can be made here")
    containers = Containers()
    yield containers
    containers.close()


class Play:
    """The programs of one test, and their reports."""

    def __init__(self, net, artifacts, directory=None):
        self.net, self.artifacts = net, artifacts
        self.directory = net.directory if directory is None else directory
        self.dir = Path(tempfile.mkdtemp(prefix="sdp-across-"))
        self.dir.chmod(0o1777)
        weakref.finalize(self, shutil.rmtree, self.dir, True)
        self.count = 0

    def start(self, space, user, argv, tunables=(), within=()):
        """A program under the library; with its report's path. `within`: words in front of the tool."""
        self.count += 1
        report = self.dir / f"{self.count}.json"
        command = space.prefix() + words(user) + [*within, self.artifacts.sdp, "run", "--no-config", "--report", report]
        for key, value in {"rendezvous_dir": self.directory, **dict(tunables)}.items():
            command += ["--set", f"{key}={value}"]
        program = Program(command + ["--", *argv], self.dir / f"{self.count}.log", cwd=self.dir)
        program.report = report
        return program

    def end(self, program):
        """Waits for it; its report."""
        code = program.wait(LIMIT_S)
        assert code == 0, f"{program.argv}: {code}\n{program.output().decode(errors='replace')}"
        return Report.read(program.report.name, program.report)

    def script(self, *argv):
        """A command of the suite's program."""
        return [python(), self.artifacts.programs / "across.py", *argv]

    def serve(self, how, connections, tunables=(), user=SERVER):
        """A server in b."""
        program = self.start(self.net.b, user, self.script("serve", "::", SERVED, how, connections), tunables)
        self.net.b.until_listening(SERVED)
        return program

    def ask(self, way, messages, size, tunables=(), user=CLIENT):
        """A client in a."""
        return self.start(self.net.a, user, self.script("ask", *WAYS[way], messages, size), tunables)


def share(*reports):
    """Of the payload of the ends together."""
    sdp = sum(report.sdp_bytes for report in reports)
    return sdp / (sdp + sum(report.tcp_bytes for report in reports))


def check_met(net, *reports):
    """Payload went over SDP, each byte that one end sent the other has received, and no name is left."""
    for report in reports:
        assert share(report) >= SHARE, report.raw
    assert net.names() == [], "names of meetings that are over"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tunables", [{}, ALWAYS, {"rendezvous_trust": "proof"}], ids=["earned", "always", "proof"])
def test_messages(net, artifacts, way, tunables):
    """Whatever is translated between the ends, messages go over SDP and come back as they were."""
    if not net.translates and WAYS[way][1] != SERVED:
        pytest.skip("no address translation (nft) here")
    play = Play(net, artifacts)
    server = play.serve("blocking", 1, tunables)
    client = play.end(play.ask(way, 3000, 700, tunables))
    check_met(net, client, play.end(server))


@pytest.mark.parametrize("how", ["epoll", "fork"])
def test_servers(net, artifacts, how):
    """An event loop and a server that forks for each connection, for several clients, of which one is of the server's user."""
    play = Play(net, artifacts)
    server = play.serve(how, 3, ALWAYS)
    clients = [play.ask("direct", 1500, 1000, ALWAYS, user) for user in (CLIENT, SERVER, "root")]
    reports = [play.end(client) for client in clients]
    check_met(net, *reports, play.end(server))


@pytest.mark.parametrize("way", ["direct", "masquerade"])
def test_redis(net, artifacts, way):
    """Redis and its benchmark, of two users, by a translated address: their payload goes over SDP."""
    if not net.translates and way != "direct":
        pytest.skip("no address translation (nft) here")
    if not shutil.which("redis-benchmark"):
        pytest.skip("no redis-benchmark")
    play = Play(net, artifacts)
    argv = ["redis-server", "--port", SERVED, "--save", "", "--appendonly", "no", "--protected-mode", "no"]
    server = play.start(net.b, "redis", argv)
    net.b.until_listening(SERVED)
    address, port = WAYS[way]
    argv = ["redis-benchmark", "-h", address, "-p", port, "-c", "4", "-n", "20000", "-d", "1000", "-t", "set,get", "--csv"]
    client = play.end(play.start(net.a, CLIENT, argv))
    server.process.terminate()
    check_met(net, client, play.end(server))


def test_no_directory(net, artifacts):
    """Without a directory such a connection is TCP, and says why."""
    play = Play(net, artifacts, directory="/nonexistent/sdp")
    server = play.serve("blocking", 1, ALWAYS)
    reports = [play.end(play.ask("direct", 300, 100, ALWAYS)), play.end(server)]
    for report in reports:
        assert report.sdp_bytes == 0 and report.raw["reasons"] == {"remote-peer": 1}, report.raw


def test_looks_for_a_directory(net, artifacts):
    """Where there is none the kernel is not asked for it at each connection and each listener, but at most once a second."""
    play = Play(net, artifacts, directory="/nonexistent/sdp")
    server = play.serve("blocking", 40, ALWAYS)
    trace = play.dir / "trace"
    within = ["strace", "-f", "-qq", "-o", trace, "-P", play.directory, "-e", "trace=%file"]
    began = time.monotonic()
    argv = play.script("often", *WAYS["direct"], 40)
    play.end(play.start(net.a, CLIENT, argv, ALWAYS, within))
    took = time.monotonic() - began
    play.end(server)
    looks = trace.read_text("ascii").count(play.directory)
    assert 1 <= looks <= 3 + took, f"{looks} looks in {took} seconds"


def test_other_end_without_the_library(net, artifacts):
    """A name in the directory to which nobody comes is taken away again; nothing is lost."""
    play = Play(net, artifacts)
    argv = net.b.prefix() + play.script("serve", "::", SERVED, "blocking", 1)
    server = Program(argv, play.dir / "plain.log")
    net.b.until_listening(SERVED)
    report = play.end(play.ask("direct", 3000, 100, ALWAYS))
    assert server.wait(LIMIT_S) == 0
    assert report.sdp_bytes == 0 and "peer-not-listening" in report.raw["reasons"], report.raw
    assert net.names() == [], "the name of a meeting that came to nothing"


@pytest.mark.parametrize("how", ["exit", "exec"])
def test_leaves_no_name(net, artifacts, how):
    """A client that ends, or executes something, while its name is in the directory takes it away."""
    play = Play(net, artifacts)
    argv = net.b.prefix() + play.script("serve", "::", SERVED, "blocking", 1)
    server = Program(argv, play.dir / "plain.log")
    net.b.until_listening(SERVED)
    play.end(play.start(net.a, CLIENT, play.script("leave", *WAYS["direct"], how), ALWAYS))
    assert server.wait(LIMIT_S) == 0
    assert net.names() == [], "the name of a process that has gone"


@pytest.mark.parametrize("way", ["inside", "direct"])
def test_private_users(net, artifacts, way):
    """A server in whose user namespace its clients' users have no names, as Debian's unit of Redis is: in one network namespace, and
    between two."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 9):
        pytest.skip("this kernel does not number processes")
    play = Play(net, artifacts)
    uid = str(pwd.getpwnam(SERVER).pw_uid)
    argv = play.script("serve", "::", SERVED, "epoll", 3)
    within = [python(), artifacts.programs / "private_users.py", uid]
    server = play.start(net.b, "root", argv, ALWAYS, within)
    net.b.until_listening(SERVED)
    space, address = (net.b, "127.0.0.1") if way == "inside" else (net.a, WAYS[way][0])
    argv = play.script("ask", address, SERVED, 1500, 1000)
    clients = [play.start(space, user, argv, ALWAYS) for user in (CLIENT, "news", "root")]
    reports = [play.end(client) for client in clients]
    check_met(net, *reports, play.end(server))


def test_proxy(net, artifacts):
    """A proxy in user space makes two connections, of which neither end finds the other's library: TCP, and nothing is lost."""
    play = Play(net, artifacts)
    server = play.serve("blocking", 1, ALWAYS)
    argv = net.host.prefix() + play.script("relay", "10.77.0.1", 7001, "10.77.0.3", SERVED)
    proxy = Program(argv, play.dir / "proxy.log")
    net.host.until_listening(7001)
    client = play.start(net.a, CLIENT, play.script("ask", "10.77.0.1", 7001, 3000, 100), ALWAYS)
    reports = [play.end(client), play.end(server)]
    assert proxy.wait(LIMIT_S) == 0, proxy.output()
    for report in reports:
        assert report.sdp_bytes == 0 and "peer-not-listening" in report.raw["reasons"], report.raw
    assert net.names() == [], "names of meetings that came to nothing"


def test_equal_addresses(net, artifacts):
    """Two pairs of namespaces with equal addresses and ports, in step, with one directory: each byte reaches its own peer."""
    other = Containers()
    try:
        play = Play(net, artifacts)
        spaces = [net, other]
        servers = []
        for space in spaces:
            argv = play.script("serve", "::", SERVED, "epoll", 2)
            servers.append(play.start(space.b, SERVER, argv, ALWAYS))
            space.b.until_listening(SERVED)
        sizes = (1000, 1010, 990, 1020)
        asked = [(space, size) for space, size in zip(spaces * 2, sizes)]
        clients = [
            play.start(space.a, CLIENT, play.script("ask", *WAYS["direct"], 1500, size), ALWAYS)
            for space, size in asked
        ]
        reports = [play.end(client) for client in clients]
        check_met(net, *reports, *(play.end(server) for server in servers))
    finally:
        other.close()


@pytest.mark.parametrize("user", [CLIENT, "root"])
def test_killed_peer(net, artifacts, user):
    """A server in a process namespace of its own is killed: its client gets the end, as over TCP, and waits no longer."""
    play = Play(net, artifacts)
    argv = play.script("serve", "::", SERVED, "blocking", 1)
    within = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    server = play.start(net.b, "root", argv, ALWAYS, within)
    net.b.until_listening(SERVED)
    client = play.start(net.a, user, play.script("last", *WAYS["direct"], 1000), ALWAYS)
    wait_until(lambda: b"met" in client.output(), "messages", LIMIT_S)
    server.process.kill()
    report = play.end(client)
    assert share(report) >= SHARE, report.raw
    assert b"ended" in client.output()


# In a namespace of processes of its own.
ALONE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.parametrize("tunables", [{}, ALWAYS], ids=["earned", "always"])
@pytest.mark.parametrize("user", [CLIENT, SERVER])
@pytest.mark.parametrize("alone", ["killed", "survivor", "both"])
@pytest.mark.parametrize("way", ["inside", "direct"])
def test_unread_of_a_killed_peer(net, artifacts, way, alone, user, tunables):
    """Ends in different namespaces of processes, one of which may not see the other: what the killed one had sent is read to its
    last byte, and then the end; nobody waits for it."""
    play = Play(net, artifacts)
    # As root, or it could not make the namespace: the command behind it changes the user.
    hidden = [*ALONE, *words(SERVER)] if alone != "survivor" else []
    space, address = (net.b, "127.0.0.1") if way == "inside" else (net.a, WAYS[way][0])
    server = play.start(net.b, "root" if hidden else SERVER, play.script("leaves", "0.0.0.0", SERVED, 30000), tunables, hidden)
    net.b.until_listening(SERVED)
    hidden = [*ALONE, *words(user)] if alone != "killed" else []
    client = play.start(space, "root" if hidden else user, play.script("rest", address, SERVED, 30000), tunables, hidden)
    wait_until(lambda: b"sent" in server.output(), "bytes", LIMIT_S)
    (play.dir / "go").touch()
    server.wait(LIMIT_S)
    (play.dir / "killed").touch()
    report = play.end(client)
    assert share(report) >= SHARE, report.raw
    assert b"ended" in client.output()


@pytest.mark.parametrize("alone", ["giver", "taker"])
def test_hand_over_from_elsewhere(net, artifacts, alone):
    """A process may have the descriptors of one of its user that has no id here: the bytes of an exec go back through the sender's socket,
    and need no relay."""
    play = Play(net, artifacts)
    within = {"giver": [], "taker": [], alone: [*ALONE, *words(SERVER)]}
    users = {one: "root" if hidden else SERVER for one, hidden in within.items()}
    argv = play.script("hands", "127.0.0.1", SERVED, 30000)
    server = play.start(net.b, users["taker"], argv, ALWAYS, within["taker"])
    net.b.until_listening(SERVED)
    argv = play.script("gives", "127.0.0.1", SERVED, 30000)
    client = play.start(net.b, users["giver"], argv, ALWAYS, within["giver"])
    wait_until(lambda: b"sent" in client.output(), "bytes", LIMIT_S)
    (play.dir / "go").touch()
    reports = [play.end(client), play.end(server)]
    check_met(net, *reports)
    assert client.output().split()[2] == server.output().split()[1], "it goes on in a relay"


PROOF = {**ALWAYS, "rendezvous_trust": "proof"}
DISTURBS = {"removed", "crowded"}
UNMET = {"peer-not-listening", "peer-refused", "untrusted-peer", "no-meeting-place"}


@pytest.mark.parametrize("tunables", [ALWAYS, PROOF], ids=["group", "proof"])
@pytest.mark.parametrize("how", ["blocking", "epoll"])
def test_one_way(net, artifacts, how, tunables):
    """Of bytes that go in one direction only most go over SDP: tokens pass in both, although the server never sends."""
    play = Play(net, artifacts)
    server = play.start(net.b, SERVER, play.script("stream", "::", SERVED, how), tunables)
    net.b.until_listening(SERVED)
    argv = play.script("flow", *WAYS["direct"], how)
    reports = [play.end(play.start(net.a, CLIENT, argv, tunables)), play.end(server)]
    for report in reports:
        assert share(report) >= SHARE, report.raw


def test_process_between(net, artifacts):
    """A process that sits at the name and passes all packets and descriptors on has the memory of both rings. No payload comes into it:
    the token that comes by the connection names another process, and the connection is reset."""
    play = Play(net, artifacts)
    argv = play.script("serve", "::", SERVED, "late", 1)
    server = play.start(net.b, SERVER, argv, PROOF)
    net.b.until_listening(SERVED)
    argv = [python(), artifacts.programs / "passer.py", net.directory, content(1, 100).hex(), SERVER]
    passer = Program(argv, play.dir / "passer.log", stdin=subprocess.PIPE)
    client = play.start(net.a, SERVER, play.script("cut", *WAYS["direct"], 2000), PROOF)

    def passer_says(word):
        wait_until(lambda: word in passer.output() or not passer.is_running(), word, LIMIT_S)

    passer_says(b"taken")
    (play.dir / "go").touch()
    passer_says(b"passed")
    reports = [play.end(client), play.end(server)]
    passer.process.stdin.close()
    assert passer.wait(LIMIT_S) == 0, passer.output()
    assert b"seen 0" in passer.output() and b"reset" in client.output(), passer.output()
    assert net.names() == [], "names of a process that has gone"
    assert any("protocol-violation" in report.raw["reasons"] for report in reports)
    for report in reports:
        assert report.sdp_bytes == 0, report.raw


@pytest.mark.parametrize("tunables", [ALWAYS, PROOF], ids=["group", "proof"])
@pytest.mark.parametrize("how", ["silent", "closed", "garbage", "echoed", "later", "removed", "crowded"])
def test_squatter(net, artifacts, how, tunables):
    """A process in the directory that sits at names, removes them or crowds them keeps ends from meeting, and that is all: it sees no
    payload, each byte arrives, nobody waits for it, and the next connection without it meets."""
    play = Play(net, artifacts)
    argv = [python(), artifacts.programs / "squatter.py", how, net.directory, content(1, 700).hex()]
    squatter = Program(argv, play.dir / "squatter.log", stdin=subprocess.PIPE)
    server = play.serve("late", 2, tunables)
    client = play.start(net.a, CLIENT, play.script("asks", *WAYS["direct"], 2000, 700), tunables)
    wait_until(lambda: b"found" in squatter.output(), "a name", LIMIT_S)
    (play.dir / "go").touch()
    report = play.end(client)
    squatter.process.stdin.close()
    assert squatter.wait(LIMIT_S) == 0, squatter.output()
    _, met, _, seen = squatter.output().split()[-4:]
    assert int(met) > 0 and int(seen) == 0, squatter.output()
    # Who only disturbs may be too slow for a later attempt.
    assert report.sdp_bytes == 0 or how in DISTURBS, report.raw
    assert report.sdp_bytes or report.raw["reasons"].keys() & UNMET, report.raw
    last = play.end(play.ask("direct", 3000, 700, tunables))
    assert share(last) >= SHARE, last.raw
    play.end(server)
    assert net.names() == [], "names of meetings that are over"


def test_full_directory(net, artifacts):
    """A directory that others have filled is as none, with its reason; nothing waits, and no byte is missing."""
    play = Play(net, artifacts)
    place = play.dir / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1733,nr_inodes=8", "none", place], check=True)
    try:
        for number in range(7):
            (place / str(number)).touch()
        play.directory = place
        server = play.serve("epoll", 1, ALWAYS)
        reports = [play.end(play.ask("direct", 2000, 700, ALWAYS)), play.end(server)]
    finally:
        subprocess.run(["umount", place], check=True)
    for report in reports:
        assert report.sdp_bytes == 0 and report.raw["connections"]["tcp"] == 1, report.raw
    named = {word for report in reports for word in report.raw["reasons"]}
    assert named & {"no-meeting-place", "no-memory"}, named


# A root of its own, with the files of this one.
ROOTED = ["unshare", "--mount", "sh", "-c", 'mount --make-rprivate / && mount --rbind / "$0" && exec chroot "$0" "$@"']


@pytest.mark.parametrize("how", ["blocking", "epoll", "fork"])
@pytest.mark.parametrize("users, place", [
    # In a changed root the kernel makes no namespaces of users.
    ("equal", "processes"), ("equal", "root"), ("different", "processes"), ("different", "root"), ("unmapped", "processes"),
])
@pytest.mark.parametrize("way", WAYS)
def test_matrix(net, artifacts, way, users, place, how):
    """Ways to a server, users of its clients, what it is apart by, and how it serves: each with each."""
    if not net.translates and way not in ("direct", "v6", "mapped"):
        pytest.skip("no address translation (nft) here")
    if users == "unmapped" and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 9):
        pytest.skip("this kernel does not number processes")
    play = Play(net, artifacts)
    root = play.dir / "root"
    root.mkdir()
    within = ALONE if place == "processes" else [*ROOTED, root]
    if users == "unmapped":
        within = [*within, python(), artifacts.programs / "private_users.py", str(pwd.getpwnam(SERVER).pw_uid)]
    else:
        within = [*within, *words(SERVER)]
    server = play.start(net.b, "root", play.script("serve", "::", SERVED, how, 2), ALWAYS, within)
    net.b.until_listening(SERVED)
    user = SERVER if users == "equal" else CLIENT
    clients = [play.ask(way, 4000, 700, ALWAYS, user) for _ in range(2)]
    reports = [play.end(client) for client in clients]
    check_met(net, *reports, play.end(server))


# Of the client's packets those behind the handshake.
LOST = "table inet lost { chain in { type filter hook input priority 0; tcp dport 7000 tcp flags & syn == 0 drop; }; }"


@pytest.mark.parametrize("how, tunables", [
    ("waits", {}), ("waits", ALWAYS), ("zerocopy", {}), ("zerocopy", ALWAYS), ("timestamps", {}),
])
def test_late_copies(net, artifacts, how, tunables):
    """The packet that the library had shown to itself is lost and sent again: its second copy shows by no wait, takes no event of
    others along, and what comes to the error queue by the program's own wish is the program's."""
    if not net.translates:
        pytest.skip("no filter (nft) here")
    play = Play(net, artifacts)
    server = play.serve("blocking", 1, tunables)
    client = play.start(net.a, CLIENT, play.script("late", *WAYS["direct"], how), tunables)

    def says(word):
        wait_until(lambda: word in client.output() or not client.is_running(), word, LIMIT_S)

    says(b"connected")
    net.b.run("nft", "-f", "-", text=LOST)
    try:
        (play.dir / "lost").touch()
        says(b"seen")
    finally:
        net.b.run("nft", "delete", "table", "inet", "lost")
    reports = [play.end(client), play.end(server)]
    if how == "waits":
        check_met(net, *reports)
