"""The log where its destination is hostile or full, and a log that begins while the program runs."""

import json
import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.stage import python
from tools.sdp import environment, sdp

pytestmark = pytest.mark.quick

PAIR = Path(__file__).with_name("pair.py")
LIMIT_S = 60
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user, and makes namespaces")
USER = ["setpriv", "--reuid=games", "--regid=games", "--clear-groups"]


def run(ladder, destination, *, before=(), level=3, **pipes):
    """A pair that is asked for a log: it must end well, with its bytes on SDP."""
    with tempfile.TemporaryDirectory(prefix="sdp-log-") as folder:
        os.chmod(folder, 0o777)
        report = Path(folder) / "report"
        log = ["--rule", f"log min-level {level} destination {destination}"]
        command = [*before, ladder.artifacts.sdp, "run", *log, "--report", report, "--", python(), PAIR]
        done = subprocess.run(
            command, env=environment(), check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, **{"stderr": subprocess.PIPE, **pipes},
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(report.read_text(encoding="utf-8"))["connections"]["sdp"] == 2
        return done


@pytest.fixture(name="log_folder")
def _log_folder():
    """The name of a folder in /tmp for the user's log, which is not there yet."""
    name = f"sdp-test-{os.getpid()}"
    entry = Path("/tmp") / f"{name}.5"  # games
    yield name, entry
    subprocess.run(["rm", "-rf", entry], check=True)


@ROOT
def test_a_file_of_ones_own(ladder, log_folder):
    name, entry = log_folder
    run(ladder, f"file {name}", before=USER)
    assert "LANE: fd:" in (entry / "log").read_text(encoding="utf-8") and entry.stat().st_mode & 0o777 == 0o700


@ROOT
@pytest.mark.parametrize("what", ["link", "others folder", "open folder", "link in it", "fifo in it"])
def test_what_others_have_prepared_is_not_written_to(ladder, log_folder, tmp_path, what):
    name, entry = log_folder
    victim = tmp_path / "victim"
    victim.write_text("", encoding="utf-8")
    victim.chmod(0o666)
    tmp_path.chmod(0o777)
    if what == "link":
        entry.symlink_to(tmp_path)
    else:
        entry.mkdir(mode=0o700)
        if what != "others folder":
            os.chown(entry, 5, 60)
        if what == "open folder":
            entry.chmod(0o777)
        if what == "link in it":
            (entry / "log").symlink_to(victim)
        if what == "fifo in it":
            os.mkfifo(entry / "log")
    run(ladder, f"file {name}", before=USER)
    assert victim.read_text(encoding="utf-8") == "" and not (tmp_path / "log").exists()
    if what in ("others folder", "open folder"):
        assert not list(entry.iterdir())


# A root whose /dev is FOLDER with the usual devices; then the command.
OWN_DEV = """
for name in null zero full random urandom; do : >$0/$name; mount --bind /dev/$name $0/$name; done
mount --rbind $0 /dev
exec "$@"
"""


@ROOT
@pytest.mark.parametrize("what", ["read", "full", "gone"])
def test_the_system_log(ladder, what):
    """As a logger hears it; one that does not read, or has gone, stops nobody."""
    with tempfile.TemporaryDirectory(prefix="sdp-dev-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(f"{folder}/log")
        os.chmod(f"{folder}/log", 0o666)
        if what == "full":
            # Its queue takes as many as the kernel allows.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
                filler.setblocking(False)
                with pytest.raises(BlockingIOError):
                    while True:
                        filler.sendto(b"x", f"{folder}/log")
        elif what == "gone":
            log.close()
        run(ladder, "syslog", before=["unshare", "--mount", "sh", "-c", OWN_DEV, folder], level=7)
        if what != "read":
            return
        log.setblocking(False)
        heard = []
        while True:
            try:
                heard.append(log.recv(4096))
            except BlockingIOError:
                break
    lines = [re.fullmatch(rb"<13>(\S+)\[(\d+)\]: libsdp (.*)", line) for line in heard]
    assert all(lines) and {line.group(1).decode() for line in lines} == {Path(python()).name}, heard
    assert {line.group(3)[:5] for line in lines} >= {b"LANE:"} and len({line.group(2) for line in lines}) == 2, heard


def test_a_pipe_that_nobody_reads(ladder):
    """Full from the beginning: not a line is written, and nobody waits."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, b"x" * 65536)
        except BlockingIOError:
            pass
        os.set_blocking(writing, True)
        run(ladder, "stderr", stderr=writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_without_a_reader(ladder):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        run(ladder, "stderr", stderr=writing)
    finally:
        os.close(writing)


@ROOT
def test_a_full_disk(ladder):
    code = 'mount -t tmpfs -o size=4k none /var/log && dd if=/dev/zero of=/var/log/fill bs=4k count=1 2>/dev/null; exec "$@"'
    run(ladder, "file sdp-test", before=["unshare", "--mount", "sh", "-c", code, "sh"])


def test_a_full_device(ladder):
    with open("/dev/full", "wb") as full:
        run(ladder, "stderr", stderr=full)


# Leaves a pair all descriptors that it opens itself, and none for a lane.
NO_ROOM = ["prlimit", "--nofile=9"]


def exit_lines(ladder, *options, before=(), **env):
    """What a pair logs at the exits of its two processes, and whether all was on SDP."""
    with tempfile.TemporaryDirectory(prefix="sdp-exit-") as folder:
        report = Path(folder) / "report"
        command = [ladder.artifacts.sdp, "run", *options, "--report", report, "--", *before, python(), PAIR]
        done = subprocess.run(
            command, env=environment(**env), check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        assert done.returncode == 0, done.stderr
        counts = json.loads(report.read_text(encoding="utf-8"))
    return re.findall(r"libsdp REPORT: (.*)", done.stderr), counts


STDERR = ["--rule", "log min-level 9 destination stderr"]


def test_a_process_reports_at_its_exit_what_is_odd(ladder):
    """`report=auto`: no line while all is well or a setting says TCP, a line where SDP lacks something."""
    auto = [*STDERR, "--set", "report=auto"]
    lines, counts = exit_lines(ladder, *auto)
    assert not lines and counts["connections"]["sdp"] == 2
    for setting, reason in ((["--tcp"], "rule-tcp"), (["--set", "fabrics=none"], "disabled")):
        lines, counts = exit_lines(ladder, *auto, *setting)
        assert not lines and counts["reasons"][reason] == 2
    lines, counts = exit_lines(ladder, *auto, before=NO_ROOM)
    lacking = counts["reasons"]["no-descriptors"]
    # The two ends are in one process or in two; a line for each process.
    form = r"connections \d+, on SDP 0; on TCP: (no-descriptors|peer-refused) (\d+)"
    seen = [re.fullmatch(form, line) for line in lines]
    assert lacking and all(seen), lines
    assert sum(int(line[2]) for line in seen if line[1] == "no-descriptors") == lacking, lines
    lines, _ = exit_lines(ladder, *STDERR, before=NO_ROOM)
    assert not lines, "nobody asked"


def test_a_report_at_each_exit(ladder):
    """`report=always` names what is not odd, too."""
    lines, counts = exit_lines(ladder, *STDERR, "--tcp", "--set", "report=always")
    assert lines and counts["reasons"]["rule-tcp"] == 2
    assert all("; on TCP: rule-tcp " in line for line in lines), lines
    lines, counts = exit_lines(ladder, *STDERR, "--set", "report=always", SDP_PROMOTE_CALLS="0", SDP_PROMOTE_BYTES="0")
    assert counts["connections"]["sdp"] == 2
    ends = [re.match(r"connections (\d+), on SDP (\d+)", line) for line in lines]
    assert sum(int(line[2]) for line in ends) == 2, lines


def test_a_preloaded_process_reports_by_its_environment(ladder):
    """As in a drop-in: no `sdp run`, the variable alone."""
    library = ladder.artifacts.dir / "libsdp.so"
    env = environment(LD_PRELOAD=str(library), SDP_REPORT="auto", SDP_RULES="log min-level 9 destination stderr")
    done = subprocess.run([*NO_ROOM, python(), PAIR], env=env, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "libsdp REPORT: connections" in done.stderr, done.stderr
