"""A stage: one scenario's processes under one placement of the library."""

import enum
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from . import users as people
from .procs import Program, end_leftovers
from .report import Report

LOG_TAIL = 4000
TESTS = Path(__file__).resolve().parents[1]


class Placement(enum.Enum):
    """Where the library is loaded."""

    PLAIN = "plain"
    BOTH = "both"
    SERVER = "server"
    CLIENT = "client"
    FLIP = "flip"
    # As `BOTH`, with one user at both ends: all others have the users of production (`users.py`).
    ONE_USER = "one-user"

    @property
    def at_both(self):
        """True if both ends are preloaded, and lanes are left alone."""
        return self in (Placement.BOTH, Placement.ONE_USER)

    @property
    def at_server(self):
        """True if servers are preloaded."""
        return self.at_both or self in (Placement.SERVER, Placement.FLIP)

    @property
    def at_client(self):
        """True if clients are preloaded."""
        return self.at_both or self in (Placement.CLIENT, Placement.FLIP)


class Artifacts:
    """Copies of library and tools, and of the tests' own programs, where every user can read them."""

    FILES = ("sdp", "sdpnetstat", "libsdp.so")

    def __init__(self, target, programs=TESTS / "apps"):
        self.dir = Path(tempfile.mkdtemp(prefix="sdp-ladder-"))
        self.dir.chmod(0o755)
        self.missing = []
        for name in self.FILES:
            source = Path(target) / "release" / name
            if source.is_file():
                shutil.copy2(source, self.dir / name)
            else:
                self.missing.append(str(source))
        self.programs = people.shareable(programs, self.dir / "programs")

    def public(self, word):
        """The word of a command: of a file of the tests the copy's path; what a test has made for itself (compiled programs) is
        opened to every user."""
        path = Path(word) if isinstance(word, (str, Path)) else None
        if not path or not path.is_absolute():
            return word
        if path.is_relative_to(TESTS / "apps"):
            return self.programs / path.relative_to(TESTS / "apps")
        if path.is_relative_to(tempfile.gettempdir()) and "pytest" in path.parts[2] and path.exists():
            people.reachable(path if path.is_dir() else path.parent)
        return word

    @property
    def sdp(self):
        """Path of the tool."""
        assert not self.missing, f"not built: {self.missing}; cargo xtask build"
        return self.dir / "sdp"

    def close(self):
        """Removes the copies."""
        shutil.rmtree(self.dir, ignore_errors=True)


def python():
    """The interpreter that drivers run under: the distribution's, if there is one."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else shutil.which("python3")


class Completed:
    """What a client that has ended wrote."""

    def __init__(self, name, code, out, err):
        self.name, self.code, self.out, self.err = name, code, out, err

    @property
    def text(self):
        """Standard output as text."""
        return self.out.decode(errors="replace")


class Stage:
    """Starts servers and clients of a scenario, ends them, and keeps their reports and logs."""

    def __init__(self, placement, space, artifacts, flip_seed=1, users=None):
        self.placement = placement
        self.users = users or people.Users(people.TWO)
        self.space = space
        self.artifacts = artifacts
        self.dir = Path(tempfile.mkdtemp(prefix="sdp-stage-"))
        # Programs of other users write here too.
        self.dir.chmod(0o1777)
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("SDP_")}
        self.env.update(LC_ALL="C.UTF-8", PYTHONUNBUFFERED="1", HOME=str(self.dir))
        self.env.pop("LD_PRELOAD", None)
        if placement is Placement.FLIP:
            self.env.update(
                SDP_TEST_LANE_FLIP=str(flip_seed), SDP_PROMOTE_CALLS="0", SDP_PROMOTE_BYTES="0"
            )
        self.server_reports = []
        self.client_reports = []
        self._servers = []
        self._pending = []
        self._programs = 0
        self._loopback = space.loopback_bytes()
        self._before = set(Program.running)

    def port(self):
        """A free port."""
        return self.space.port()

    def servant(self, program):
        """The user of a server, for its files and for what starts as root and then changes its user; None for nobody in
        particular."""
        return self.users.servant(program)

    def folder(self, name, user=None):
        """A new folder in the scratch directory, the user's if one is named; an old one as it is."""
        path = self.dir / name
        if not path.exists():
            path.mkdir()
            people.give(path, user)
        return path

    def _command(self, name, argv, preload, user, tunables, rules):
        command = self.space.prefix() + people.words(user)
        report = None
        if preload:
            report = self.dir / f"{name}.report.json"
            command += [self.artifacts.sdp, "run", "--no-config", "--report", report]
            for key, value in (tunables or {}).items():
                command += ["--set", f"{key}={value}"]
            for rule in rules:
                command += ["--rule", rule]
            command.append("--")
        return command + [self.artifacts.public(word) for word in argv], report

    def _unique(self, name):
        self._programs += 1
        return f"{self._programs:02}-{name}"

    def server(self, name, argv, *, port=None, user=None, cwd=None, env=None, stop=signal.SIGTERM,
               tunables=None, rules=()):
        """Starts a server and waits until it listens on `port` (if given). Without `user` it is that of its package.
        `rules`: those of `sdp run --rule`."""
        user = user or self.servant(os.path.basename(str(argv[0])))
        name = self._unique(name)
        command, report = self._command(name, argv, self.placement.at_server, user, tunables, rules)
        program = Program(
            command, self.dir / f"{name}.log", cwd=cwd or self.dir, env={**self.env, **(env or {})}
        )
        program.stop_signal = stop
        self._servers.append((name, program, report))
        if port:
            self.space.wait_listening(port, program)
        return program

    def stop(self, server):
        """Ends a server and collects its report; its exit status."""
        entry = next(entry for entry in self._servers if entry[1] is server)
        self._servers.remove(entry)
        name, program, report = entry
        code = program.stop(program.stop_signal)
        if report:
            self.server_reports.append(Report.read(name, report))
        return code

    def start(self, name, argv, *, stdin=None, user=None, cwd=None, env=None, plain=False,
              tunables=None, rules=()):
        """Starts a client that runs beside the scenario; `finish` waits for it. Without `user` it is the clients'."""
        user = user or self.users.client
        name = self._unique(name)
        preload = self.placement.at_client and not plain
        command, report = self._command(name, argv, preload, user, tunables, rules)
        if isinstance(stdin, bytes):
            source = self.dir / f"{name}.in"
            source.write_bytes(stdin)
            stdin = open(source, "rb")
        program = Program(
            command,
            self.dir / f"{name}.out",
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            cwd=cwd or self.dir,
            env={**self.env, **(env or {})},
            merge=False,
        )
        if hasattr(stdin, "close"):
            stdin.close()
        self._pending.append((name, program, report))
        return program

    def finish(self, program, limit_s=90, ok=(0,)):
        """Waits for a client; a failure if its exit status is none of `ok`."""
        entry = next(entry for entry in self._pending if entry[1] is program)
        code = program.wait(limit_s)
        self._pending.remove(entry)
        name, _, report = entry
        if report:
            self.client_reports.append(Report.read(name, report))
        done = Completed(name, code, program.output(), program.errors.read_bytes())
        assert code in ok, f"{name}: exit status {code}\n{self.logs()}"
        return done

    def client(self, name, argv, *, limit_s=90, ok=(0,), **options):
        """Runs a client to its end."""
        return self.finish(self.start(name, argv, **options), limit_s, ok)

    def loopback_delta(self):
        """Bytes that the loopback device carried since the stage was made."""
        return self.space.loopback_bytes() - self._loopback

    def logs(self):
        """The end of every program's output."""
        parts = []
        for path in sorted(self.dir.glob("*.log")) + sorted(self.dir.glob("*.err")):
            text = path.read_bytes()[-LOG_TAIL:].decode(errors="replace")
            if text.strip():
                parts.append(f"---- {path.name}\n{text}")
        return "\n".join(parts)

    def close(self):
        """Ends the servers, collects their reports, and makes sure that nothing is left."""
        for _, program, _ in list(self._servers):
            self.stop(program)
        left = end_leftovers(keep=self._before)
        assert not left, f"left running: {left}\n{self.logs()}"

    def abandon(self):
        """Ends everything after a failure."""
        for _, program, _ in self._servers + self._pending:
            try:
                program.stop(signal.SIGTERM, 5)
            except AssertionError:
                program.kill()
        end_leftovers(keep=self._before)

    def remove(self):
        """Removes the scratch directory."""
        shutil.rmtree(self.dir, ignore_errors=True)
