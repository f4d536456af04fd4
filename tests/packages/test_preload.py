"""The library in /etc/ld.so.preload of a whole root: everything that runs there has it, and nothing is the worse for it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.procs import wait_until

from .root import Root, one

TOP = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
PAIR = TOP / "tests" / "tools" / "pair.py"
PYTHON = "/usr/bin/python3"
PRELOAD = "/etc/ld.so.preload"
# An ordinary user that every Debian has.
USER = "games"
# What `pair.py` moves in each direction; a connection may begin on TCP.
PAIR_BYTES = 200 * 100

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="installs packages in a root of its own")


class System(Root):
    """A root of its own in which every program that begins loads the library."""

    def __init__(self, scratch, packages):
        super().__init__(scratch, is_apart=True)
        for source in (one(packages, ".deb"), PAIR, *PROGRAMS.iterdir()):
            if source.is_file():
                target = self.path("/tmp") / source.name
                shutil.copy(source, target)
                target.chmod(0o755)
        self.package = f"/tmp/{one(packages, '.deb').name}"
        super().run("dpkg", "--install", self.package)
        files = super().run("dpkg", "-L", "sdp").stdout.split()
        (self.library,) = (name for name in files if name.endswith("/libsdp.so"))
        self.preload()

    def preload(self):
        """From now on programs load it."""
        self.path(PRELOAD).write_text(f"{self.library}\n", encoding="utf-8")
        assert self.run("grep", "-c", "libsdp", "/proc/self/maps").stdout.strip() != "0"

    def run(self, *command, **options):
        """Runs a program; neither the loader nor the library may have said anything."""
        done = super().run(*command, **options)
        said = done.stdout + done.stderr if options.pop("whole", True) else done.stderr
        assert "ld.so: object" not in said and "libsdp: " not in said, said
        return done

    def as_user(self, command, **options):
        """Runs a shell command of the ordinary user, by su."""
        return self.run("su", USER, "-s", "/bin/sh", "-c", command, **options)

    def stat(self):
        """What `sdp stat` says of the processes of the root, by program."""
        found = {}
        for process in json.loads(self.run("sdp", "stat", "--json").stdout)["processes"]:
            found.setdefault(process["program"], []).append(process)
        return found

    def bytes_on(self, lane, program):
        """Bytes that processes of a program moved on a lane."""
        moved = [process["bytes"] for process in self.stat().get(program, [])]
        return sum(each[f"{lane}_sent"] + each[f"{lane}_received"] for each in moved)


@pytest.fixture(name="scratch")
def _scratch():
    with tempfile.TemporaryDirectory(prefix="sdp-preload-") as folder:
        yield Path(folder)


@pytest.fixture(name="system", scope="module")
def _system(packages):
    """One for all tests that leave it as it is."""
    with tempfile.TemporaryDirectory(prefix="sdp-preload-") as folder:
        system = System(folder, packages)
        try:
            yield system
        finally:
            system.close()


@pytest.fixture(name="own")
def _own(packages, scratch):
    """One for a test that breaks it."""
    system = System(scratch, packages)
    try:
        yield system
    finally:
        system.close()


@contextmanager
def pair(system, *before, mode="plain", env=None):
    """Two connected processes, while both live. They check their bytes themselves, and say nothing."""
    command = (*before, PYTHON, "/tmp/pair.py", mode)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with system.start(*command, env=env, **pipes) as process:
        try:
            begun = process.stdout.readline()
            assert begun.startswith("ready "), begun + process.stderr.read()
            yield process
            out, err = process.communicate(timeout=30)
            assert (process.returncode, out, err) == (0, "", "")
        except BaseException:
            process.kill()
            raise


def talks(system, *before, mode="plain", env=None):
    """Bytes of a pair on SDP and on TCP, and its reasons."""
    with pair(system, *before, mode=mode, env=env):
        ends = system.stat().get("python3", [])
        reasons = {reason for end in ends for reason in end["reasons"]}
        return system.bytes_on("sdp", "python3"), system.bytes_on("tcp", "python3"), reasons


def accelerated(found):
    """Whether all but the first bytes went over SDP, nothing for a reason."""
    sdp, _, reasons = found
    return sdp > PAIR_BYTES and not reasons


# ---- programs of every day

CONTROL = "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: trial\n"
POSTINST = "#!/bin/sh\nset -e\necho \"{name} $*\" >>/var/log/trial\nperl -e 'print qq(perl runs\\n)' >>/var/log/trial\n"


def package(system, name, files, **scripts):
    """Builds a Debian package in the root; its name there."""
    top = system.path(f"/tmp/{name}")
    (top / "DEBIAN").mkdir(parents=True)
    (top / "DEBIAN/control").write_text(CONTROL.format(name=name), encoding="utf-8")
    for script, text in {"postinst": POSTINST.format(name=name), **scripts}.items():
        (top / "DEBIAN" / script).write_text(text, encoding="utf-8")
        (top / "DEBIAN" / script).chmod(0o644 if script == "triggers" else 0o755)
    for file in files:
        (top / file).parent.mkdir(parents=True, exist_ok=True)
        (top / file).write_text(name, encoding="utf-8")
    system.run("dpkg-deb", "--root-owner-group", "--build", f"/tmp/{name}", f"/tmp/{name}.deb")
    shutil.rmtree(top)
    return f"/tmp/{name}.deb"


def installs(system):
    """Packages with scripts and a trigger come and go, by apt and by dpkg; what their scripts wrote, and what was there meanwhile."""
    watcher = package(system, "trial-watcher", ["usr/share/trial/watcher"], triggers="interest /usr/share/trial-watched\n")
    watched = package(system, "trial-watched", ["usr/share/trial-watched/file"])
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    # Without the lists of what could be had elsewhere, which take seconds to read.
    system.run("mkdir", "-p", "/tmp/lists/partial", "/tmp/cache/archives/partial")
    apt = ("apt-get", "-q", "-y", "-oDir::State::lists=/tmp/lists", "-oDir::Cache=/tmp/cache")
    system.run(*apt, "install", watcher, env=env)
    system.run("dpkg", "--install", watched)
    there = system.run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", "trial-*").stdout
    system.run(*apt, "purge", "trial-watcher", "trial-watched", env=env)
    assert not system.path("/usr/share/trial").exists()
    log = system.path("/var/log/trial")
    text = log.read_text(encoding="utf-8")
    log.unlink()
    return text, there


def test_packages_come_and_go(system):
    """apt, dpkg, their scripts and triggers do what they do without the library."""
    found = installs(system)
    assert "trial-watcher triggered /usr/share/trial-watched\nperl runs\n" in found[0], found
    assert found[1] == "trial-watched installed\ntrial-watcher installed\n"
    system.path(PRELOAD).unlink()
    try:
        assert installs(system) == found
    finally:
        system.preload()


PROJECT = {
    "Makefile": "all: program\nprogram: main.o libsum.a\n\tgcc -o $@ main.o -L. -lsum\n"
    "libsum.a: sum.o\n\tar rcD $@ $^\n%.o: %.c\n\tgcc -O1 -g -c $<\n",
    "main.c": '#include <stdio.h>\nint sum(int);\nint main(void) { printf("%d\\n", sum(100)); return 0; }\n',
    "sum.c": "int sum(int n) { int s = 0; for (int i = 1; i <= n; i++) s += i; return s; }\n",
}


def builds(system, folder):
    """A small build by make, gcc, ar and ld, and one by cargo; sums of what came out."""
    top = system.path(folder)
    top.mkdir()
    for name, text in PROJECT.items():
        (top / name).write_text(text, encoding="utf-8")
    system.run("make", "-s", "-j2", "-C", folder)
    assert system.run(f"{folder}/program").stdout == "5050\n"
    made = ("program", "libsum.a", "main.o")
    sums = {name: hashlib.sha256((top / name).read_bytes()).hexdigest() for name in made}
    shutil.rmtree(top)
    return sums


def test_a_build_by_gcc(system):
    """The same bytes come out."""
    with_library = builds(system, "/tmp/build")
    system.path(PRELOAD).unlink()
    try:
        assert builds(system, "/tmp/build") == with_library
    finally:
        system.preload()


def test_a_build_by_cargo(system):
    """rustc with its threads, and a linker; the program runs."""
    toolchain = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    top = system.path("/tmp/crate")
    (top / "src").mkdir(parents=True)
    (top / "Cargo.toml").write_text('[package]\nname = "trial"\nversion = "0.1.0"\nedition = "2021"\n', encoding="utf-8")
    (top / "src/main.rs").write_text('fn main() { println!("{}", (1..=100).sum::<i32>()); }\n', encoding="utf-8")
    env = {"PATH": f"{toolchain}/bin:/usr/bin:/bin", "CARGO_HOME": "/tmp/cargo"}
    system.run("cargo", "build", "--quiet", "--offline", "--manifest-path", "/tmp/crate/Cargo.toml", env=env)
    assert system.run("/tmp/crate/target/debug/trial").stdout == "5050\n"


def test_sshd_and_ssh(system):
    """Logins as Debian has them, with PAM: a file, an exit status, a conversation; every byte."""
    keys = system.path("/tmp/keys")
    keys.mkdir(mode=0o700)
    for key in ("host", "user"):
        system.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"/tmp/keys/{key}")
    (keys / "authorized").write_bytes((keys / "user.pub").read_bytes())
    system.run("mkdir", "-p", "/run/sshd")
    options = ["ListenAddress=127.0.0.1", "PidFile=none", "StrictModes=no", "UsePAM=yes", "PermitRootLogin=yes"]
    options = [f"-o{option}" for option in (*options, "AuthorizedKeysFile=/tmp/keys/authorized")]
    log = open(system.base / "sshd.log", "w+", encoding="utf-8")
    server = system.start("/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-h", "/tmp/keys/host", *options, stderr=log)
    try:
        wait_until(lambda: system.run("ss", "-Hltn", "sport = :22").stdout, "sshd")
        ssh = ["ssh", "-q", "-i", "/tmp/keys/user", "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null"]
        ssh += ["-oBatchMode=yes", "root@127.0.0.1"]
        data = "".join(f"line {i}\n" for i in range(200_000))
        summed = system.run(*ssh, "sha256sum", text_in=data).stdout.split()[0]
        assert summed == hashlib.sha256(data.encode()).hexdigest()
        assert system.run(*ssh, "exit 7", check=False).returncode == 7
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with system.start(*ssh, "cat", bufsize=1, **pipes) as client:
            for i in range(100):
                client.stdin.write(f"{i}\n")
                assert client.stdout.readline() == f"{i}\n"
            # PAM changes the session's groups, so its connection, which is older, stays on TCP.
            session = system.stat()["sshd"][-1]["connections"][0]["send"]
            assert session["reason"] == "privilege" and session["tcp_bytes"] > 100, session
            out, err = client.communicate(timeout=30)
            assert (client.returncode, out, err) == (0, "", "")
    finally:
        server.terminate()
        server.wait(20)
        log.seek(0)
        print(log.read())
        log.close()


WHO = "id -un; id -u; grep -c libsdp.so /proc/self/maps >/dev/null && echo loaded"


def test_su_and_sudo(system):
    """From root to a user, from there to root by sudo; the library is in what they start."""
    uid = system.run("id", "-u", USER).stdout.strip()
    assert system.as_user(WHO).stdout.split() == [USER, uid, "loaded"]
    sudoers = system.path("/etc/sudoers.d/trial")
    sudoers.write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n", encoding="utf-8")
    sudoers.chmod(0o440)
    assert system.as_user(f"sudo -n sh -c '{WHO}'").stdout.split() == ["root", "0", "loaded"]
    assert system.as_user(f"sudo -n -u nobody sh -c '{WHO}'").stdout.split()[0::2] == ["nobody", "loaded"]
    refused = system.run("su", "nobody", "-s", "/bin/sh", "-c", "sudo -n true", check=False)
    assert refused.returncode == 1 and "password is required" in refused.stderr


def test_cron(system):
    """Jobs of root and of a user run."""
    jobs = system.path("/etc/cron.d/trial")
    lines = [f"@reboot {user} ({WHO}) >/tmp/cron-{user} 2>&1; mv /tmp/cron-{user} /tmp/cron-{user}-done\n" for user in ("root", USER)]
    jobs.write_text("".join(lines), encoding="utf-8")
    jobs.chmod(0o644)
    for name in ("/run/crond.pid", "/run/crond.reboot"):
        system.path(name).unlink(missing_ok=True)
    daemon = system.start("cron", "-f")
    try:
        for user in ("root", USER):
            done = system.path(f"/tmp/cron-{user}-done")
            wait_until(done.exists, f"{user}'s job")
            assert done.read_text(encoding="utf-8").split()[0::2] == [user, "loaded"]
    finally:
        daemon.terminate()
        daemon.wait(20)


def test_set_id_programs(system):
    """They have the library, because root said so, and take nothing else from the environment of who starts them."""
    system.run("gcc", "-O1", "-o", "/tmp/setid", "/tmp/setid.c")
    system.run("chmod", "4755", "/tmp/setid")
    system.path("/tmp/rules").write_text("log min-level 1 destination file stolen.log\noption ring_bytes 65536\n", encoding="utf-8")
    env = {"LIBSDP_CONFIG_FILE": "/tmp/rules", "SDP_REPORT": "/tmp/stolen", "SDP_RULES": "log min-level 1 destination file stolen.log"}
    words = " ".join(f"{key}='{value}'" for key, value in env.items())
    line = system.as_user(f"env {words} SDP_TEST_LANE_FLIP=1 /tmp/setid").stdout
    assert line == "uid 0 secure 1 library 1 bytes 200000\n"
    stolen = [path for path in ("/var/log/stolen.log", "/tmp/stolen", "/tmp/stolen.log", "/tmp/stolen.log.0") if system.path(path).exists()]
    assert not stolen
    # The same rules are obeyed where nothing is at stake.
    system.run("/tmp/setid", env=env)
    assert system.path("/var/log/stolen.log").stat().st_size > 0
    system.path("/var/log/stolen.log").unlink()


def test_set_id_programs_without_a_list(own):
    """Preloaded by a user's environment they have no library, and no complaint of the library's."""
    own.run("gcc", "-O1", "-o", "/tmp/setid", "/tmp/setid.c")
    own.run("chmod", "4755", "/tmp/setid")
    own.path(PRELOAD).unlink()
    assert own.as_user("/tmp/setid").stdout == "uid 0 secure 1 library 0 bytes 200000\n"
    told = own.run("su", USER, "-s", "/bin/sh", "-c", f"LD_PRELOAD={own.library} /tmp/setid", check=False)
    assert told.stdout == "uid 0 secure 1 library 0 bytes 200000\n"


# ---- services that are confined

# What a unit says, and whether its programs may have lanes with each other; else the reason.
UNITS = {
    "plain": ([], None),
    "no-new-privileges": (["NoNewPrivileges", f"User={USER}"], None),
    "private-network": (["PrivateNetwork"], None),
    "protect-proc": (["ProtectProc", f"User={USER}"], None),
    "proc-subset": (["ProcSubset", f"User={USER}"], None),
    "protect-system": (["ProtectSystem"], None),
    "private-users": (["PrivateUsers"], None),
    "memory-deny-write-execute": (["MemoryDenyWriteExecute"], None),
    "memory-deny-write-execute-filter": (["MemoryDenyWriteExecute=filter"], None),
    "calls-refused": (["SystemCallFilter=EPERM", f"User={USER}"], None),
    "calls-kill": (["SystemCallFilter", f"User={USER}"], None),
    "families": (["RestrictAddressFamilies", f"User={USER}"], "sandbox"),
    "all": (
        ["NoNewPrivileges", "ProtectSystem", "ProtectProc", "PrivateNetwork", "MemoryDenyWriteExecute", "SystemCallFilter",
         "RestrictAddressFamilies", f"User={USER}"], "sandbox",
    ),
}


@pytest.mark.parametrize("unit", UNITS)
def test_hardened_services(system, unit):
    """They work, and are accelerated where what they may do allows it."""
    settings, reason = UNITS[unit]
    launcher = (PYTHON, "/tmp/hardened.py", *settings, "--")
    found = talks(system, *launcher)
    print(found)
    if reason is None:
        assert accelerated(found), found
    else:
        assert found[0] == 0 and found[2] == {reason}, found
    # Bytes under way are handed over to an image that knows nothing of them.
    assert system.run(*launcher, PYTHON, "/tmp/pair.py", "cat").stderr == ""


# ---- what may go wrong in a system

def folder_of_rules(path):
    """A folder in the file's place."""
    path.mkdir()


def rubbish(path):
    """Bytes that are no text."""
    path.write_bytes(bytes(range(256)) * 200)


RULES = {
    "missing": lambda path: None,
    "rubbish": rubbish,
    "no-statement": lambda path: path.write_text("use both everything\nmatch\nlog destination\noption\n" * 1000, encoding="utf-8"),
    "huge": lambda path: path.write_bytes(b"use tcp client nobody-at-all 10.0.0.1:1\n" * 20_000),
    "folder": folder_of_rules,
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to("libsdp.conf"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", RULES)
def test_a_broken_rule_file(system, kind):
    """Programs run, say nothing, and have the rules that hold without one."""
    rules = system.path("/etc/libsdp.conf")
    before = rules.read_bytes()
    rules.unlink()
    try:
        RULES[kind](rules)
        assert system.run("true").stderr == ""
        assert accelerated(talks(system))
    finally:
        if rules.is_dir() and not rules.is_symlink():
            rules.rmdir()
        else:
            rules.unlink(missing_ok=True)
        rules.write_bytes(before)


def test_an_unreadable_rule_file(system):
    """Of root's, to a user."""
    rules = system.path("/etc/libsdp.conf")
    rules.chmod(0)
    try:
        assert accelerated(talks(system, "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"))
    finally:
        rules.chmod(0o644)


def test_an_unreadable_etc(own):
    """A user's programs are not preloaded then, and run; preloaded by name they have the rules that hold without a file."""
    own.path("/etc").chmod(0o700)
    user = ("setpriv", "--reuid=5", "--regid=60", "--clear-groups")
    assert own.run(*user, "grep", "-c", "libsdp", "/proc/self/maps", check=False).stdout == "0\n"
    assert talks(own, *user) == (0, 0, set())
    assert accelerated(talks(own, *user, "env", f"LD_PRELOAD={own.library}"))
    own.path("/etc").chmod(0o755)


def test_removal_while_programs_run(own):
    """Those go on with their lanes, can fork and execute; new ones begin without the library and say nothing of it."""
    with pair(own) as old:
        # A shell that starts programs after the library has gone.
        shell = own.start("sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        own.run("dpkg", "--install", own.package)
        assert accelerated(talks(own))
        removed = own.run("dpkg", "--purge", "sdp")
        assert "taken out of" in removed.stderr
        assert not own.path(own.library).exists() and not own.path(PRELOAD).exists()
        out, _ = shell.communicate("true | cat; (echo $((6 * 7))); /bin/echo ended\n", timeout=20)
        assert (shell.returncode, out) == (0, "42\nended\n")
        with pair(own):
            assert own.run("grep", "-c", "libsdp", "/proc/self/maps", check=False).stdout == "0\n"
        assert old.poll() is None


def test_a_list_that_names_what_is_gone(own):
    """The loader says so, in each program, and each runs: nothing but a line to be mended."""
    with pair(own):
        own.path(own.library).unlink()
        own.path(f"{own.library}.1").unlink()
        done = Root.run(own, "sh", "-c", "echo $((6 * 7))")
        assert done.stdout == "42\n" and "cannot be preloaded" in done.stderr
        own.path(PRELOAD).unlink()
        assert own.run("true").stderr == ""


# ---- what it costs

def calls(environment):
    """System calls of `true`: those of the loader, and those behind them."""
    with tempfile.TemporaryDirectory(prefix="sdp-preload-") as folder:
        trace = Path(folder) / "trace"
        options = [f"--env={key}={value}" for key, value in environment.items()]
        subprocess.run(["strace", "-o", trace, *options, "true"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        lines = [line for line in trace.read_text(encoding="utf-8").splitlines() if "exited with" not in line]
    # The loader's last: it lets go of its cache.
    last = max(i for i, line in enumerate(lines) if line.startswith("munmap("))
    return lines[: last + 1], lines[last + 1:]


def test_a_program_without_sockets_makes_few_calls_more():
    """Beyond what the loader does for any library: who am I, which numbers are open, and one look at each of those."""
    library = TOP / "target" / "release" / "libsdp.so"
    (loader, plain), (loading, preloaded) = calls({}), calls({"LD_PRELOAD": library})
    own = preloaded[: len(preloaded) - len(plain)]
    print("\n".join(own), f"loader: {len(loading) - len(loader)} more")
    open_numbers = 3
    assert len(own) <= 2 + open_numbers, own
    assert len(loading) - len(loader) <= 12, loading
