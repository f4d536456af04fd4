"""Where chaos rounds happen: long-lived survivors, victims, and witnesses of what is left behind.

A world has a network namespace and, where the kernel lets us, a memory group of its own, and two
programs that survive every round: one that others connect to, one that connects to others. A round
starts victims beside them. After each round the survivors must hold what they held before it.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from support import users as people
from support.limits import now
from support.procs import Program, become_subreaper, end_leftovers, wait_until
from support.report import Report, check_sums
from support.space import Space
from support.stage import Artifacts, python

from . import evidence

TARGET = Path(os.environ.get("SDP_TEST_TARGET", Path(__file__).parents[2] / "target")).resolve()
PEER = Path(__file__).with_name("programs") / "peer.py"
# A process whose main thread is well describes itself at once.
DESCRIBE_S = 5
# Nothing in a round may take longer; TCP itself needs far less, but for one thing (`LEFT_LIMIT_S`).
LIMIT_S = 60
# libc keeps stacks and heaps of threads that have ended, and so does the interpreter.
SLACK_MAPS = 64
# Wait sets and views of the eventfd are made when first needed and kept.
SLACK_SETS = 16
EAGER = {"SDP_PROMOTE_CALLS": "0", "SDP_PROMOTE_BYTES": "0"}
# Idle segments that two living processes may keep for their next connection (docs/spec/shm.md 6.1), and how the
# kernel calls what goes with them.
KEPT, KEPT_PER_PEER = 16, 4
SEGMENTS, PAGES, BELLS = "map of /memfd:sdp-conn", "map of /memfd:sdp-bell", "anon_inode:[eventfd]"
DIRECTORY = re.compile(r"/proc/\d+/fd")
NETLINK_SOCK_DIAG = "4"
# A process with less than this is killed by the kernel soon after it began to eat.
TIGHT_BYTES = 48 << 20


# Lanes as they come; the same where nothing is kept for a next connection, so that nothing is excused; lanes that
# flip at random on every call; and, to test the tests, no library at all.
KINDS = ("steady", "exact", "flip", "plain")


class Memory:
    """A memory group of the world's own (version 1 of the interface), or nothing."""

    ROOT = Path("/sys/fs/cgroup/memory")

    def __init__(self):
        self.dir = None
        try:
            path = self.ROOT / f"sdp-chaos-{os.getpid()}-{time.monotonic_ns()}"
            path.mkdir()
        except OSError:
            return
        self.dir = path
        try:
            (path / "tight").mkdir()
            (path / "tight" / "memory.limit_in_bytes").write_text(str(TIGHT_BYTES))
            try:
                (path / "tight" / "memory.memsw.limit_in_bytes").write_text(str(TIGHT_BYTES))
            except OSError:
                pass
        except OSError:
            self.close()

    def enter(self, pid, is_tight=False):
        """Moves a process into the group."""
        if self.dir:
            ((self.dir / "tight" if is_tight else self.dir) / "cgroup.procs").write_text(str(pid))

    def close(self):
        """Removes the group; it is empty."""
        if self.dir:
            for path in (self.dir / "tight", self.dir):
                if path.exists():
                    wait_until(lambda p=path: _is_removed(p), f"end of {path}")
            self.dir = None


def _is_removed(path):
    try:
        path.rmdir()
    except OSError:
        return False
    return True


class Gone(AssertionError):
    """A peer ended, or kept silent, where it should have spoken."""


class Peer:
    """A running peer and the page in which it says how far it has come."""

    def __init__(self, world, name, *, report=None, is_tight=False, words=(), user=None):
        self.name, self.world = name, world
        self.log = world.dir / f"{name}.log"
        self.page = os.memfd_create(name)
        os.ftruncate(self.page, 4096)
        argv = world.space.prefix() + list(words) + people.words(user)
        if report and not world.is_plain:
            argv += [world.artifacts.sdp, "run", "--no-config", "--report", report, "--"]
        argv += [python(), "-I", "-S", world.artifacts.programs / PEER.name, self.page]
        env = dict(world.env)
        if not report and not world.is_plain:
            env.update(LD_PRELOAD=str(world.artifacts.dir / "libsdp.so"), LIBSDP_CONFIG_FILE="")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                pass_fds=[self.page],
                start_new_session=True,
            )
        Program.running[self.process.pid] = self
        self._heard = b""
        self.code = None
        hello = self.hear()
        # Under the tool the peer is its child.
        self.pid, self.port = hello["pid"], hello["port"]
        world.memory.enter(self.pid, is_tight)

    def tell(self, do, **order):
        """One order. A peer that has gone does not mind."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def hear(self, limit_s=LIMIT_S):
        """Its next reply; a failure with its stacks if there is none in time."""
        deadline = now() + limit_s
        while b"\n" not in self._heard:
            left = deadline - now()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Gone(f"{self.name}: silent for {limit_s} s")
            data = os.read(self.process.stdout.fileno(), 65_536)
            if not data:
                raise Gone(f"{self.name}: ended ({self.process.wait(LIMIT_S)})\n{self.log.read_text()}")
            self._heard += data
        line, self._heard = self._heard.split(b"\n", 1)
        return json.loads(line)

    def ask(self, do, **order):
        """An order and its reply."""
        self.tell(do, **order)
        return self.hear()

    def stacks(self):
        """Where its threads are."""
        os.kill(self.pid, signal.SIGCONT)
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.5)
        parts = [self.log.read_text()]
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                parts.append(f"{task.name}: {(task / 'syscall').read_text().strip()}")
            except OSError:
                continue
        for number, link in sorted(self.links().items()):
            parts.append(f"{number} {link}")
        parts += self.world.table("tcp") + [row for row in self.world.table("unix") if "sdp/" in row]
        parts.append(json.dumps(self.world.stat(self)))
        parts.append(self.describe())
        parts.append(evidence.of(self.pid))
        return "\n".join(parts)

    def describe(self):
        """What the ends of its rounds are about, and their last calls, in its own words."""
        self.tell("describe")
        try:
            while "rounds" not in (told := self.hear(DESCRIBE_S)):
                pass
        except Gone as error:
            return str(error)
        ends = [json.dumps(end) for entered in told["rounds"] for end in entered]
        return "\n".join(["what it is about:", *ends])

    def progress(self):
        """For each connection and each direction of it (sent, received): bytes."""
        cells = memoryview(os.pread(self.page, 256, 0)).cast("Q")
        return [(cells[2 * i], cells[2 * i + 1]) for i in range(16)]

    def signal(self, number):
        """To the process."""
        os.kill(self.pid, number)

    def links(self):
        """Its open descriptors: number and what it is."""
        found = {}
        for number in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                found[int(number)] = os.readlink(f"/proc/{self.pid}/fd/{number}")
            except OSError:
                continue
        return found

    def tcp_sockets(self):
        """How many of its descriptors are TCP sockets; others are doorbells for processes of other users."""
        inodes = {f"socket:[{row.split()[9]}]" for row in self.world.table("tcp")}
        return sum(link in inodes for link in self.links().values())

    def lives_at(self, number):
        """Whether the process lives of whose descriptors descriptor `number` is the directory."""
        try:
            return os.stat(f"/proc/{self.pid}/fd/{number}").st_size != 0
        except OSError:
            return False

    def is_asker(self, link):
        """Whether it is a socket by which the kernel is asked for other sockets."""
        with open(f"/proc/{self.pid}/net/netlink", encoding="utf-8") as table:
            rows = [line.split() for line in table]
        return any(row[1] == NETLINK_SOCK_DIAG and link == f"socket:[{row[-1]}]" for row in rows[1:])

    def without_kept(self, kinds, links):
        """The same without what may be kept for the next connection: segments that it shares with processes that
        live, and for each of these one directory, one eventfd and one page. Anything else stays as it is, all of it."""
        directories = {n: link for n, link in links.items() if DIRECTORY.match(link)}
        segments = sum(count for kind, count in kinds.items() if kind.startswith(SEGMENTS))
        peers = set(directories.values())
        if (
            len(peers) == len(directories) <= segments <= min(KEPT, KEPT_PER_PEER * len(peers))
            and all(self.lives_at(number) for number in directories)
        ):
            for kind in list(kinds):
                if kind.startswith(SEGMENTS) or kind in peers:
                    del kinds[kind]
                elif kind == BELLS or kind.startswith(PAGES):
                    kinds[kind] -= len(peers)
        return +kinds

    def shares(self):
        """What it has in common with other processes, by name: nothing without connections, if nothing is kept."""
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as maps:
            segments = [line for line in maps if SEGMENTS.removeprefix("map of ") in line]
        return segments + [link for link in self.links().values() if DIRECTORY.match(link)]

    def held(self):
        """What it holds, by kind; equal before and after a round. And what may grow a little."""
        links = self.links()
        askers = [n for n, link in links.items() if link.startswith("socket:") and self.is_asker(link)]
        if askers and not self.world.is_exact:
            del links[askers[0]]
        kinds = Counter(
            link.split(":")[0] if link.startswith(("socket:", "pipe:")) else link for link in links.values()
        )
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as maps:
            lines = [line.split(None, 5) for line in maps]
        for line in lines:
            name = line[5].strip() if len(line) > 5 else ""
            if "memfd:" in name or "/dev/zero" in name:
                kinds[f"map of {name}"] += 1
        if not self.world.is_exact:
            kinds = self.without_kept(kinds, links)
        sets = kinds.pop("anon_inode:[eventpoll]", 0)
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as status:
            threads = next(int(line.split()[1]) for line in status if line.startswith("Threads"))
        return {**kinds, "threads": threads}, {"maps": len(lines), "sets": sets}

    def wait(self):
        """Waits for its end; exit status, negative for a signal."""
        if self.code is None:
            try:
                self.code = self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                raise Gone(f"{self.name}: does not end") from None
            Program.running.pop(self.process.pid, None)
            for end in (self.process.stdin, self.process.stdout):
                try:
                    end.close()
                except BrokenPipeError:
                    pass
            os.close(self.page)
        return self.code

    def abandon(self):
        """Whatever state it is in: it ends."""
        if self.code is None:
            for pid in {self.pid, self.process.pid}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.wait()


def differences(now, before):
    """What a process holds that it did not hold before, or the other way round."""
    (kinds, extra), (old, slack) = now, before
    found = [] if kinds == old else [f"holds {kinds}, held {old}"]
    if extra["maps"] > slack["maps"] + SLACK_MAPS or extra["sets"] > slack["sets"] + SLACK_SETS:
        found.append(f"holds {extra}, held {slack}")
    return found


def clock(ahead_s):
    """Words in front of a command that give it clocks of its own, ahead of everybody's or behind."""
    mounts = 'mount -t proc proc /proc && exec "$@"'
    offsets = ["--monotonic", str(ahead_s), "--boottime", str(ahead_s)]
    return ["unshare", "--mount", "sh", "-c", mounts, "sh", "unshare", "--time", *offsets, "--"]


def may_have_clocks():
    """Whether `clock` works here."""
    return subprocess.run([*clock(1), "true"], check=False, capture_output=True).returncode == 0


def shared_files():
    """Files of shared memory with a name of ours, for which there is no reason."""
    return {name for name in os.listdir("/dev/shm") if "sdp" in name}


class World:
    """Survivors and witnesses of many rounds."""

    def __init__(self, target, seed, kind):
        assert kind in KINDS, kind
        become_subreaper()
        self.kind, self.is_plain, self.is_exact = kind, kind == "plain", kind == "exact"
        self.artifacts = Artifacts(target, PEER.parent)
        self.dir = Path(tempfile.mkdtemp(prefix="sdp-chaos-"))
        self.dir.chmod(0o1777)
        # Of the one that accepts and of the one that connects; a victim is of the user of whose place it takes.
        self.users = people.drawn(seed)
        self.memory = Memory()
        self.space = Space(Space.may_be_private())
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "LD_"))}
        # What somebody made for a while would be here.
        (self.dir / "tmp").mkdir()
        (self.dir / "tmp").chmod(0o1777)
        self.env["TMPDIR"] = str(self.dir / "tmp")
        self.files = shared_files()
        if kind == "flip":
            self.env.update(EAGER, SDP_TEST_LANE_FLIP=str(seed % (1 << 31) + 1))
        if self.is_exact:
            self.env["SDP_KEEP_SEGMENTS"] = "0"
        self.has_clocks = may_have_clocks()
        self.before = set(Program.running)
        self.paths = [self.dir / name for name in ("server.json", "client.json")]
        self.server = Peer(self, "server", report=self.paths[0], user=self.users[0])
        self.client = Peer(self, "client", report=self.paths[1], user=self.users[1])
        self.survivors = (self.server, self.client)
        self.victims = []
        for style in ("threads", "level", "poll"):
            for _ in range(2):
                self.fresh(style, 4)
        # The thread of a round ends a moment after its last word.
        for peer in self.survivors:
            wait_until(lambda p=peer: p.held()[0]["threads"] == 1, f"end of {peer.name}'s threads")
            if self.is_exact:
                wait_until(lambda p=peer: not p.shares(), f"end of all that {peer.name} shares", LIMIT_S)
        self.baseline = {peer.name: peer.held() for peer in self.survivors}

    def victim(self, accepts, **options):
        """A new process, for this round only, of the user of the survivor that accepts or of the one that connects."""
        peer = Peer(self, f"victim{len(self.victims)}", user=self.users[0 if accepts else 1], **options)
        self.victims.append(peer)
        return peer

    def stat(self, peer):
        """What the library publishes about a process."""
        done = subprocess.run(
            [self.artifacts.sdp, "stat", "--json", "--pid", str(peer.pid)],
            capture_output=True, timeout=LIMIT_S, check=False, text=True,
        )
        processes = json.loads(done.stdout)["processes"] if done.returncode == 0 else []
        return processes[0] if processes else {}

    def is_attached(self, peer):
        """Whether a connection of the process has met its other end; cheap, for waiting."""
        return self.is_plain or "memfd:sdp-conn" in Path(f"/proc/{peer.pid}/maps").read_text(encoding="utf-8")

    def sdp_bytes(self, peer):
        """Payload that the process has moved over SDP so far."""
        if self.is_plain:
            return time.monotonic()
        figures = self.stat(peer).get("bytes", {})
        return figures.get("sdp_sent", 0) + figures.get("sdp_received", 0)

    def fresh(self, style="threads", count=1):
        """New connections between the survivors work, and are accelerated: both say so."""
        order = {"seed": 0, "count": count, "style": style, "sends": True, "lazy": False, "gentle": True}
        before = [self.sdp_bytes(peer) for peer in self.survivors]
        self.server.tell("begin", role="accept", **order)
        self.client.tell("begin", role="connect", port=self.server.port, **order)
        wait_until(
            lambda: all(
                self.is_attached(p) and self.sdp_bytes(p) > b for p, b in zip(self.survivors, before)
            ),
            "acceleration of a fresh connection",
            LIMIT_S,
        )
        for peer in self.survivors:
            peer.tell("change", change={"is_finishing": True})
        theirs, ours = (peer.hear() for peer in self.survivors)
        for one, other in zip(theirs["ended"], ours["ended"], strict=True):
            assert one["wrong"] is None and other["wrong"] is None, (one, other)
            assert one["read"] == other["read"] == "EOF", (one, other)
            assert one["got"] == other["sent"] and one["sent"] == other["got"], (one, other)
        assert len(ours["ended"]) == count, ours

    def evidence(self):
        """Of a round that failed: what each process that is still there is doing."""
        parts = []
        for peer in (*self.survivors, *self.victims):
            if peer.code is None and peer.process.poll() is None:
                try:
                    parts.append(f"---- {peer.name}\n{peer.stacks()}")
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    parts.append(f"---- {peer.name}: {error!r}")
        return "\n".join(parts)

    def table(self, name):
        """Rows of the namespace's table of sockets."""
        pid = self.space.holder.pid if self.space.holder else "self"
        return Path(f"/proc/{pid}/net/{name}").read_text(encoding="utf-8").splitlines()[1:]

    def remains(self):
        """What is there of past rounds; nothing, a moment after they have ended."""
        found = []
        for peer in self.survivors:
            for what in differences(peer.held(), self.baseline[peer.name]):
                found.append(f"{peer.name} {what}")
        if self.space.is_private:
            # Nobody else uses this namespace: no meeting goes on, and only closed connections wait.
            found += [row for row in self.table("unix") if "sdp/" in row]
            found += [row for row in self.table("tcp") if row.split()[3] not in ("0A", "06")]
        return found

    def settle(self):
        """After a round: its processes are gone, and so is all that they had. Nobody tells a survivor of the end of
        a process with which it has no connection; it looks when it next ends one of its own."""
        for victim in self.victims:
            victim.abandon()
        self.victims.clear()
        left = end_leftovers(keep=self.before)
        assert not left, f"left running: {left}"
        self.fresh()
        deadline = now() + LIMIT_S
        while found := self.remains():
            assert now() < deadline, "left behind:\n" + "\n".join(found)
            time.sleep(0.005)

    def close(self):
        """The orderly end of the survivors; their reports."""
        for peer in self.survivors:
            peer.tell("quit")
        codes = [peer.wait() for peer in self.survivors]
        found = [*os.listdir(self.dir / "tmp"), *(shared_files() - self.files)]
        assert not found, f"files left behind: {found}"
        assert codes == [0, 0], [codes, *(p.log.read_text() for p in self.survivors)]
        reports = [] if self.is_plain else [Report.read(path.stem, path) for path in self.paths]
        for report in reports:
            check_sums(report)
        left = end_leftovers(keep=self.before)
        assert not left, f"left running: {left}"
        return reports

    def remove(self):
        """Whatever state it is in: nothing of it stays."""
        for peer in (*self.victims, *self.survivors):
            peer.abandon()
        end_leftovers(keep=self.before)
        self.memory.close()
        self.space.close()
        self.artifacts.close()
        shutil.rmtree(self.dir, ignore_errors=True)
