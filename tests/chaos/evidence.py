"""What a process is doing that does not get on: for the message of a failed round, nothing else.

Failures of this suite are rare; whoever reads one has no process to look at any more. So everything is asked
while it is there: which threads run and which sleep, their stacks, the system calls of a second and their
answers, what the library publishes, what a process shares with others: who is attached, and to whom. Nothing here
fails: what a machine cannot tell is left out.
"""

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

SAMPLE_S = 1
# Of a segment's control page. crates/sdp-shm/src/layout.rs asserts the same offsets when it is compiled.
ENDS, END_BYTES, LINE = 128, 128, struct.Struct("6I")
# A tool that takes longer than this is given up.
TOOL_LIMIT_S = 20
TAIL_LINES, TOP_LINES, STACK_LINES = 60, 30, 120


def tool(*argv):
    """The output of a tool, or why there is none."""
    if not shutil.which(argv[0]):
        return f"no {argv[0]} here"
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=TOOL_LIMIT_S, check=False, text=True, errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return repr(error)
    return done.stdout


def ticks(pid):
    """State and CPU time of each thread."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[task.name] = fields[0], int(fields[11]), int(fields[12]), (task / "syscall").read_text().strip()
        except (OSError, IndexError, ValueError):
            continue
    return found


def threads(pid):
    """Who runs, who sleeps, and how much of the last second each has used."""
    before = ticks(pid)
    time.sleep(SAMPLE_S)
    parts = []
    for tid, (state, user, system, call) in ticks(pid).items():
        _, user_0, system_0, _ = before.get(tid, ("", user, system, ""))
        parts.append(f"thread {tid} {state}: {user - user_0}+{system - system_0} ticks in {SAMPLE_S} s; {call}")
    return parts


def system_calls(pid):
    """The system calls of a second: how many of each with which answer, and the last ones."""
    with tempfile.TemporaryDirectory() as where:
        path = Path(where) / "trace"
        words = ["timeout", "-s", "INT", str(SAMPLE_S), "strace", "-f", "-q", "-s", "16", "-o", str(path)]
        said = tool(*words, "-p", str(pid))
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            return [said]
    kinds = Counter()
    for line in lines:
        head, _, answer = line.partition(" = ")
        kinds[f"{head.split(None, 1)[-1].split('(')[0]} = {' '.join(answer.split()[:2])}"] += 1
    return [
        f"system calls of {SAMPLE_S} s:",
        *(f"{count:8} {kind}" for kind, count in kinds.most_common(TOP_LINES)),
        "the last of them:",
        *lines[-TAIL_LINES:],
    ]


def stacks(pid):
    """Native stacks of all threads, and where CPU time goes."""
    words = ["-p", str(pid), "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 20"]
    lines = tool("gdb", *words).splitlines()
    parts = ["native stacks:", *[line[:200] for line in lines if line.startswith(("#", "Thread"))][-STACK_LINES:]]
    with tempfile.TemporaryDirectory() as where:
        path = str(Path(where) / "samples")
        tool("perf", "record", "-o", path, "-g", "-p", str(pid), "--", "sleep", str(SAMPLE_S))
        words = ["-i", path, "--stdio", "--no-children", "-g", "none", "--percent-limit", "1"]
        lines = tool("perf", "report", *words).splitlines()
    return [*parts, "CPU samples:", *[line for line in lines if line and not line.startswith("#")][:TOP_LINES]]


def end_line(memory, base, side):
    """What an end says of itself in a segment (EndLine in crates/sdp-shm/src/layout.rs)."""
    line = os.pread(memory, LINE.size, base + ENDS + side * END_BYTES)
    attached, _, intent, descriptor, *_ = LINE.unpack(line)
    return f"end {side}: attached {attached}, intent {intent}, descriptor {descriptor - 1}"


def shared(pid):
    """What the process shares with others: its segments, pages and family, as mapped and with what both ends say; eventfds
    and directories of peers; and the sockets of its meetings."""
    parts = ["what it shares:"]
    maps = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for line in maps:
            if "memfd:sdp" not in line:
                continue
            # The inode tells which mappings of two processes are one.
            span, _, _, _, inode, name = line.split(None, 5)
            parts.append(f"{span} inode {inode} {name}")
            if "sdp-conn" in name:
                try:
                    base = int(span.split("-")[0], 16)
                    parts += [f"    {end_line(memory, base, side)}" for side in (0, 1)]
                except (OSError, struct.error) as error:
                    parts.append(f"    {error!r}")
    finally:
        os.close(memory)
    table = Path(f"/proc/{pid}/net/unix").read_text(errors="replace").splitlines()
    inodes = {row.split()[6]: row for row in table[1:]}
    for number in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{number}")
            if "eventfd" in link:
                info = Path(f"/proc/{pid}/fdinfo/{number}").read_text().split("\n")
                link += "; " + ", ".join(" ".join(word.split()) for word in info if "eventfd" in word)
        except OSError:
            continue
        row = inodes.get(link.removeprefix("socket:[").rstrip("]"))
        if "eventfd" in link or link.startswith("/proc/") or row:
            parts.append(f"{number} {row or link}")
    return [*parts, "meeting places of its namespace:", *(row for row in table if "sdp/" in row)]


def of(pid):
    """All of it, as text."""
    parts = [f"evidence of process {pid}"]
    for ask in (shared, threads, system_calls, stacks):
        try:
            parts += ask(pid)
        except (OSError, ValueError) as error:
            parts.append(f"{ask.__name__}: {error!r}")
    return "\n".join(parts)


if __name__ == "__main__":
    print(of(os.getpid()))
