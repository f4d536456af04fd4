"""The names that libsdp.so interposes keep what libc promises.

`calls/*.c` is a program that prints what each kind of call does, on descriptors that mean nothing to
the library, on young connections and on promoted ones. It runs over plain libc first and with the
library then; both must print the same.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.report import Report, assert_flipped
from support.stage import Artifacts

HERE = Path(__file__).resolve().parent
RUN_LIMIT_S = 90

KINDS = ("unix", "tcp", "warm")
WAITS = ("read", "readv", "recv", "recvfrom", "recvmsg", "poll", "ppoll", "select", "pselect",
         "epoll_wait", "epoll_pwait", "write")
EXECS = ("execl", "execlp", "execle")
PER_KIND = ("vfork", "storm", "jump", "interrupts", "times", "many", "syscall", "forks", "numbers",
            "identity")
# Ways into a sandbox: prctl and seccomp with a filter, strict mode.
SANDBOXES = ("0", "1", "2")

CASES = (
    [("errors",), ("actions",), ("handlers",), ("io_uring",)]
    + [("exec", name, str(n)) for name in EXECS for n in range(1, 8)]
    + [(name, kind) for name in PER_KIND for kind in KINDS]
    + [("cancel", wait, kind) for wait in WAITS for kind in KINDS]
    + [("sandbox", kind, how) for kind in KINDS for how in SANDBOXES]
)

# With flips, but not what makes a connection twenty times: each would wait for delayed acknowledgements many times.
WARM = [case for case in CASES if "warm" in case and case[0] != "interrupts"]

# Instructions that a hook may add to a call on a descriptor that is not ours.
ADDED_INSTRUCTIONS = 12

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The compiled program."""
    compiler = shutil.which("cc") or pytest.skip("not installed: cc")
    binary = tmp_path_factory.mktemp("calls") / "calls"
    sources = sorted(str(p) for p in (HERE / "calls").glob("*.c"))
    subprocess.run([compiler, "-std=gnu11", "-O2", "-o", binary, *sources, "-lutil", "-pthread"],
                   check=True, timeout=RUN_LIMIT_S)
    return str(binary)


@pytest.fixture(scope="module")
def library(ladder):
    """The library, where every user can read it."""
    artifacts: Artifacts = ladder.artifacts
    return str(artifacts.sdp.parent / "libsdp.so")


def environment(library=None, **extra):
    """The environment of a run; without anything that configures the library."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("SDP_")}
    env.update(extra)
    if library:
        env["LD_PRELOAD"] = library
    return env


def run(command, env):
    """Exit status and output of a run that is bounded in time."""
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=RUN_LIMIT_S, check=False)
    return done.returncode, done.stdout.decode(errors="replace").splitlines()


@pytest.mark.parametrize("case", CASES, ids=["-".join(case) for case in CASES])
def test_call_is_the_same(program, library, case):
    """With the library a program observes what it observes without."""
    plain = run([program, *case], environment())
    assert plain[0] == 0, plain
    assert run([program, *case], environment(library)) == plain


@pytest.mark.parametrize("case", WARM, ids=["-".join(case) for case in WARM])
def test_call_is_the_same_with_flips(ladder, program, case, tmp_path):
    """The same on promoted connections whose lanes change at random calls."""
    plain = run([program, *case], environment())
    assert plain[0] == 0, plain
    report = tmp_path / "report"
    command = [str(ladder.artifacts.sdp), "run", "--no-config", "--report", str(report), "--", program, *case]
    flips = {"SDP_TEST_LANE_FLIP": str(ladder.flip_seed), "SDP_PROMOTE_CALLS": "0", "SDP_PROMOTE_BYTES": "0"}
    assert run(command, environment(**flips)) == plain
    assert_flipped(Report.read("report", report))


@pytest.mark.parametrize("policy, answer", [("deny", "not here"), ("allow", None), ("auto", None)])
def test_io_uring_policy(program, library, policy, answer):
    """`deny` answers ENOSYS; otherwise a program that is not built on libuv gets the kernel's answer."""
    expected = (0, [answer]) if answer else run([program, "io_uring"], environment())
    assert run([program, "io_uring"], environment(library, SDP_IO_URING=policy)) == expected


def test_fast_path_length(program, library, tmp_path):
    """A read of a foreign descriptor costs a handful of instructions more, counted exactly."""
    if not shutil.which("valgrind"):
        pytest.skip("not installed: valgrind")

    def instructions(calls, preload):
        out = tmp_path / "callgrind.out"
        code, _ = run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program,
                       "reads", str(calls)], environment(preload))
        assert code == 0
        totals = [line for line in out.read_text().splitlines() if line.startswith("summary:")]
        return int(totals[0].split()[1])

    def per_call(preload):
        return (instructions(21000, preload) - instructions(1000, preload)) / 20000

    added = per_call(library) - per_call(None)
    assert 0 < added <= ADDED_INSTRUCTIONS


def test_no_system_call_added(program, library, tmp_path):
    """A program that uses no socket makes the same system calls, but for the start."""
    if not shutil.which("strace"):
        pytest.skip("not installed: strace")

    def calls(preload):
        trace = tmp_path / "trace"
        given = ["-E", f"LD_PRELOAD={preload}"] if preload else []
        code, _ = run(["strace", "-o", str(trace), *given, program, "reads", "50"], environment())
        assert code == 0
        lines = trace.read_text().splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("pipe"))
        return [line.split("(")[0] for line in lines[first:]]

    assert calls(library) == calls(None)


BOUND = """
import ctypes, sys
names = dict(line.split() for line in open(sys.argv[1]))
base = next(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.rstrip().endswith(sys.argv[2]))
libc = ctypes.CDLL("libc.so.6")
for name, at in names.items():
    leads_to = ctypes.c_void_p.from_address(base + int(at, 16)).value
    wanted = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value if hasattr(libc, name) else None
    print(name, "is absent" if wanted is None else "is libc's" if leads_to == wanted else "leads elsewhere")
"""


def test_each_name_leads_where_the_loader_says(library, tmp_path):
    """The constructor looks names up by itself."""
    symbols = subprocess.run(["nm", "-C", library], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^([0-9a-f]+) \w sdp::real::(\w+)::NEXT$", symbols, re.MULTILINE)
    names = tmp_path / "names"
    names.write_text("".join(f"{name} {at}\n" for at, name in found if not name.startswith("io_uring_")), encoding="utf-8")
    ended = subprocess.run([sys.executable, "-c", BOUND, names, library], env={**os.environ, "LD_PRELOAD": library},
                           check=True, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    said = [line.split(" ", 1) for line in ended.stdout.splitlines()]
    assert len(said) > 100 and [name for name, what in said if what == "leads elsewhere"] == [], ended.stdout
    assert sum(what == "is libc's" for _, what in said) > 100, ended.stdout
