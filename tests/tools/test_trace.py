"""The recorder of a process, while it runs and after a crash, and the probes for tracers from outside."""

import json
import os
import random
import re
import signal
import socket
import subprocess

import pytest

from support.procs import wait_until
from support.stage import python
from tools.sdp import environment, sdp
from tools.test_forms import hold
from tools.test_screens import page, publishing
from tools.test_tools import PAIR, pair

pytestmark = pytest.mark.quick

LIMIT_S = 60
TRACE = 4096
PROBES = {
    "promoted": ["fd", "direction", "fabric"],
    "fallback": ["fd", "reason"],
    "demoted": ["fd", "direction", "reason"],
    "handover": ["fd", "reason"],
}
# What gdb does at each probe; its own convenience variables name the arguments.
COMMANDS = """
set pagination off
set confirm off
set breakpoint pending on
set detach-on-fork off
set schedule-multiple on
set non-stop off
set print thread-events off
set print inferior-events off
catch load libsdp
run
delete
"""


def trace(ladder, of, **options):
    """The form, which is as documented; a text that says the same."""
    done = sdp(ladder, "stat", "--json", "--trace", of, **options)
    assert done.returncode == 0, done.stderr
    form = json.loads(done.stdout)
    hold("trace", form)
    text = sdp(ladder, "stat", "--trace", of, **options).stdout
    for process in form["processes"]:
        assert f"{process['pid']} {process['program']}" in text
        for event in process["events"]:
            assert re.search(rf"fd {event['fd']}\b.* {event['event']}", text), (event, text)
    return form["processes"]


def told(process):
    """What a recorder says of lanes."""
    return [(e["event"], e["direction"], e["fabric"], e["reason"]) for e in process["events"]]


PROMOTED = {("promoted", way, "shm", None) for way in ("send", "receive")}


def test_what_a_living_process_did(ladder):
    """Both halves of a connection, in order of time, with its ports."""
    with pair(ladder, "--no-config") as (parent, child, port, other):
        for pid, ports in ((parent, (port, other)), (child, (other, port))):
            wait_until(lambda pid=pid: PROMOTED <= set(told(*trace(ladder, pid))), "the lane")
            (process,) = trace(ladder, pid)
            assert process["pid"] == pid and not process["has_ended"]
            events = process["events"]
            assert [e["number"] for e in events] == list(range(1, len(events) + 1))
            times = [e["at_s"] for e in events]
            assert times == sorted(times) and times[0] >= 0
            promoted = [e for e in events if e["event"] == "promoted"]
            assert {(e["local_port"], e["remote_port"]) for e in promoted} == {ports}, events


def test_what_left_the_lane_and_why(ladder, tmp_path):
    """Urgent data, which the kernel alone can do; then somebody who may have no library gets the other end."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + HANDS_OVER, encoding="utf-8")
    command = [ladder.artifacts.sdp, "run", "--no-config", "--", python(), program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        pid = int(process.stdout.readline())
        (recorded,) = trace(ladder, pid)
        process.communicate("\n", timeout=LIMIT_S)
    events = told(recorded)
    assert ("demoted", "send", None, "urgent-data") in events, events
    after = events[events.index(("hand-over", None, "shm", "passed")):]
    assert ("demoted", "send", None, "passed") in after, events


def test_what_never_came_to_a_lane(ladder, tmp_path):
    """The other end has no library: the reason is that of the report."""
    listener = socket.create_server(("127.0.0.1", 0))
    program, report = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(ASKS, encoding="utf-8")
    command = [ladder.artifacts.sdp, "run", "--no-config", "--report", report, "--", python(), program,
               str(listener.getsockname()[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        end, _ = listener.accept()
        for _ in range(100):
            end.sendall(end.recv(1))
        (recorded,) = trace(ladder, int(process.stdout.readline()))
        process.communicate("\n", timeout=LIMIT_S)
    ((reason, count),) = json.loads(report.read_text(encoding="utf-8"))["reasons"].items()
    assert count == 1 and told(recorded)[-1] == ("fallback", None, None, reason), (recorded, reason)


@pytest.fixture(name="killed")
def _killed(ladder, tmp_path):
    """A pair of which one was killed under `sdp run --trace`: the folder, its id, what was said."""
    command = [ladder.artifacts.sdp, "run", "--no-config", f"--trace={tmp_path / 'sdp'}", "--", python(), PAIR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment()) as process:
        child = int(process.stdout.readline().split()[1])
        wait_until(lambda: PROMOTED <= set(told(*trace(ladder, child))), "the lane")
        os.kill(child, signal.SIGKILL)
        kept = tmp_path / "sdp" / f"{child}.page"
        wait_until(kept.exists, "the page is kept while the command runs")
        process.stdin.close()
        said = process.stderr.read()
        process.wait(LIMIT_S)
    return tmp_path, child, said


def test_what_a_killed_process_did(ladder, killed):
    """By its number and by the file; the other end, which ended by itself, is not kept."""
    folder, child, said = killed
    assert f"process {child} " in said and str(folder / "sdp" / f"{child}.page") in said, said
    assert [path.name for path in (folder / "sdp").iterdir()] == [f"{child}.page"]
    env = environment(XDG_RUNTIME_DIR=str(folder))
    (by_number,) = trace(ladder, child, env=env)
    (by_file,) = trace(ladder, folder / "sdp" / f"{child}.page")
    assert by_number == by_file and not by_file["has_ended"]
    assert by_file["pid"] == child and PROMOTED <= set(told(by_file))
    assert os.stat(folder / "sdp").st_mode & 0o777 == 0o700
    assert os.stat(folder / "sdp" / f"{child}.page").st_mode & 0o777 == 0o600


def test_a_folder_that_others_can_write_to_is_refused(ladder, tmp_path):
    """Before the command runs; a link to one's own folder, too."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name in ("open", "link"):
        done = sdp(ladder, "run", f"--trace={tmp_path / name}", "--", "touch", tmp_path / "ran")
        assert done.returncode == 125 and "--trace" in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()


def test_what_is_in_a_core_dump(ladder, tmp_path):
    """As gdb writes it of a running process."""
    core = tmp_path / "core"
    with pair(ladder, "--no-config") as (parent, *_):
        wait_until(lambda: PROMOTED <= set(told(*trace(ladder, parent))), "the lane")
        dump = ["gdb", "-nx", "-batch", "-p", str(parent), "-ex", f"generate-core-file {core}"]
        subprocess.run(dump, check=True, capture_output=True, timeout=LIMIT_S, env=environment())
        found = trace(ladder, core)
        assert parent in [process["pid"] for process in found]
        (own,) = [process for process in found if process["pid"] == parent]
        assert own == trace(ladder, parent)[0]


def test_rubbish_is_shown_as_such(ladder, tmp_path):
    """In pages of hostile processes and in files: no crash, nothing for a terminal; nothing that is no file is read."""
    pages = [bytearray(page(seed, True)) for seed in (2, 4)]
    for seed, content in enumerate(pages):
        content[-TRACE:] = random.Random(seed).randbytes(TRACE)
    with publishing(map(bytes, pages)) as pids:
        for pid in pids:
            done = sdp(ladder, "stat", "--trace", pid)
            assert done.returncode == 0 and "event-" in done.stdout
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", done.stdout)
            trace(ladder, pid)
    (tmp_path / "many").write_bytes(b"x" * 3 + b"".join(bytes(content) + b"sdpstats" for content in pages))
    assert len(trace(ladder, tmp_path / "many")) == 2
    (tmp_path / "cut").write_bytes(pages[0][:5000])
    trace(ladder, tmp_path / "cut")
    (tmp_path / "none").write_bytes(b"sdpstats" * 10000)
    os.mkfifo(tmp_path / "fifo")
    for name in ("none", "fifo", ".", "missing"):
        done = sdp(ladder, "stat", "--trace", tmp_path / name)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, (name, done)


def probes(library):
    """Names of probes with the places of their arguments, as `readelf` reads the notes."""
    text = subprocess.run(["readelf", "-nW", library], check=True, capture_output=True, text=True).stdout
    place = r"Location: (\S+), Base: \S+, Semaphore: \S+\s+Arguments: (.*)"
    blocks = re.findall(rf"Provider: (\S+)\s+Name: (\S+)\s+{place}", text)
    return [(provider, name, int(at, 16), places.split()) for provider, name, at, places in blocks]


def test_probes_are_one_instruction_and_a_note(ladder):
    """The names and numbers of arguments that are documented; at each place the processor does nothing."""
    library = ladder.artifacts.dir / "libsdp.so"
    found = probes(library)
    assert {provider for provider, *_ in found} == {"sdp"}
    assert {name: len(places) for _, name, _, places in found} == {name: len(args) for name, args in PROBES.items()}
    for _, name, at, places in found:
        assert all(re.fullmatch(r"-4@%?\w+", place) for place in places), places
        command = ["objdump", "-d", f"--start-address={at}", f"--stop-address={at + 1}", library]
        code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert re.search(rf"{at:x}:\s+90\s+nop", code), (name, code)


def test_a_tracer_counts_what_the_report_counts(ladder, tmp_path):
    """gdb stops at a probe as often as the report says, with the arguments that the recorder has."""
    stops = "".join(
        f"""break -probe-stap sdp:{name}
commands
silent
printf "HIT {name} {' '.join(['%d'] * len(args))}\\n", {', '.join(f'$_probe_arg{i}' for i in range(len(args)))}
continue
end
"""
        for name, args in PROBES.items()
    )
    script = tmp_path / "script"
    script.write_text(COMMANDS + stops + "continue\n", encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + URGENT, encoding="utf-8")
    report = tmp_path / "report.json"
    command = [ladder.artifacts.sdp, "run", "--no-config", "--report", report, "--",
               "gdb", "-nx", "-batch", "-x", script, "--args", python(), program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
    hits = [(name, [int(n) for n in numbers.split()]) for name, numbers in
            re.findall(r"^HIT (\w+) ([-\d ]+)$", done.stdout, re.MULTILINE)]
    said = json.loads(report.read_text(encoding="utf-8"))
    promoted = [numbers for name, numbers in hits if name == "promoted"]
    demoted = [numbers for name, numbers in hits if name == "demoted"]
    assert "every byte" in done.stdout, (done.stdout, done.stderr)
    assert len(promoted) == said["switches"]["promoted"] == 4, (hits, said)
    assert len(demoted) == said["switches"]["demoted"] > 0, (hits, said)
    assert sorted(direction for _, direction, _ in promoted) == [0, 0, 1, 1]
    assert {fabric for *_, fabric in promoted} == {1}
    assert {fd for fd, *_ in promoted} >= {fd for fd, *_ in demoted}


PROGRAM = """
import socket, threading

ROUNDS, LENGTH = 100, 100
listener = socket.create_server(("127.0.0.1", 0))
ends = [socket.create_connection(listener.getsockname()), listener.accept()[0]]

def play(end, first):
    for _ in range(ROUNDS):
        if first:
            end.sendall(b"x" * LENGTH)
        left = LENGTH
        while left:
            left -= len(end.recv(left))
        if not first:
            end.sendall(b"x" * LENGTH)

other = threading.Thread(target=play, args=(ends[1], False))
other.start()
play(ends[0], True)
other.join()
"""
URGENT = """
# Has no place on the lane.
ends[0].send(b"!", socket.MSG_OOB)
for end in ends:
    end.close()
print("every byte")
"""
HANDS_OVER = """
import os, sys
ends[0].send(b"!", socket.MSG_OOB)
one, other = socket.socketpair()
socket.send_fds(one, [b"x"], [ends[1].fileno()])
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
ASKS = """
import os, socket, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(100):
    end.sendall(b"x")
    assert end.recv(1) == b"x"
end.close()
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
