"""Living with others: libraries that are preloaded too, sanitizers, small stacks, limits of the environment."""

import os
import subprocess

import pytest

from .harness import EAGER, FLIPS, LIMIT_S, SDP, TARGET, compiled, run
from support.report import Report

LIBRARY = TARGET / "release" / "libsdp.so"
MODES = {"default": {}, "eager": EAGER}
# What a hook may take of a thread's stack, as docs/compatibility.md has it.
STACK_MAX = 8192
# What the second library answers itself, of which the program uses this many kinds.
KINDS = 20


@pytest.fixture(scope="module")
def neighbours():
    return compiled("neighbours.c", "-Wl,-z,now")


@pytest.fixture(scope="module")
def second():
    return compiled("second.c", "-shared", "-fPIC")


def fine(outcome):
    assert outcome.code == 0 and outcome.seen == {"fine": True}, outcome.describe()


def accelerated(outcome):
    fine(outcome)
    assert outcome.report.sdp_bytes > 10_000, outcome.describe()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ["behind", "before"])
def test_library_that_calls_syscall(neighbours, second, order, mode, tmp_path):
    """Another preloaded library answers calls with `syscall`: it is not called again for what it asks there."""
    libraries = [LIBRARY, second] if order == "behind" else [second, LIBRARY]
    preload = "LD_PRELOAD=" + ":".join(map(str, libraries))
    count = tmp_path / "count"
    outcome = run(["env", preload, f"SECOND_COUNT={count}", neighbours], env=MODES[mode])
    accelerated(outcome)
    # The program alone writes: its children end otherwise.
    assert count.stat().st_size >= KINDS, outcome.describe()
    # Nothing was made or counted twice.
    plain = run([neighbours], env=MODES[mode])
    accelerated(plain)
    assert outcome.report.seen == plain.report.seen, outcome.describe()
    sums = [report.sdp_bytes + report.tcp_bytes for report in (outcome.report, plain.report)]
    assert sums[0] == sums[1], f"{plain.describe()}\n{outcome.describe()}"


def tool(argv, tmp_path, *, wrap=(), **env):
    """`sdp run` itself among others' variables; its report."""
    report = tmp_path / "report"
    command = [*wrap, SDP, "run", "--no-config", "--report", report, "--", *argv]
    ended = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **EAGER, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return ended, report


def runtime(name):
    """A sanitizer's shared runtime, which comes with the compiler."""
    path = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert os.path.isabs(path), path
    return os.path.realpath(path)


def test_sanitizer_preloaded(neighbours, tmp_path):
    """AddressSanitizer wants to be the first library that there is."""
    ended, report = tool(
        [neighbours], tmp_path, LD_PRELOAD=runtime("libasan.so"), ASAN_OPTIONS="detect_leaks=0"
    )
    assert ended.returncode == 0 and '{"fine": true}' in ended.stdout, ended
    assert Report.read("report", report).sdp_bytes > 10_000, ended


def test_program_with_sanitizer(tmp_path):
    """A program that is linked with it."""
    source = compiled("neighbours.c", "-Wl,-z,now") and "neighbours.c"
    program = tmp_path / "sanitized"
    flags = ["-O1", "-pthread", "-fsanitize=address", "-Wl,-z,now"]
    path = os.path.join(os.path.dirname(__file__), "programs", source)
    subprocess.run(["gcc", *flags, path, "-o", program], check=True)
    for options in ["", "detect_leaks=0"]:
        ended, report = tool([program], tmp_path, ASAN_OPTIONS=options)
        assert ended.returncode == 0 and '{"fine": true}' in ended.stdout, ended
        assert Report.read("report", report).sdp_bytes > 10_000, ended


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.parametrize("to", ["report", "stdout", "prometheus-file"])
def test_report_without_room(tmp_path, to, code):
    """No byte may be written to a file: the report is missing, the command's status is not."""
    option, path = ("--report", "-") if to == "stdout" else (f"--{to}", tmp_path / to)
    options = [option, path, "--summary"]
    command = [SDP, "run", "--no-config", *options, "--", "sh", "-c", f"exit {code}"]
    script = 'ulimit -f 0; exec "$@"'
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        ended = subprocess.run(
            ["bash", "-c", script, "bash", *map(str, command)], stdout=out, stderr=err, timeout=LIMIT_S
        )
    assert ended.returncode == code
    piped = subprocess.run(
        ["bash", "-c", script, "bash", *map(str, command)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert piped.returncode == code
    assert (f"sdp run: {option}" in piped.stderr) == (to != "stdout"), piped.stderr


def test_command_without_room_gets_its_signal(tmp_path):
    """What the tool does for itself the command does not inherit."""
    script = "ulimit -f 0; echo x > " + str(tmp_path / "file")
    ended = subprocess.run(
        [SDP, "run", "--no-config", "--report", tmp_path / "report", "--", "sh", "-c", script],
        timeout=LIMIT_S,
    )
    plain = subprocess.run(["sh", "-c", script], timeout=LIMIT_S)
    assert ended.returncode == (plain.returncode if plain.returncode >= 0 else 128 - plain.returncode)
    assert Report.read("report", tmp_path / "report")


@pytest.mark.parametrize("mode", {**MODES, "flips": FLIPS})
def test_stack_of_calls(neighbours, mode):
    """No hook takes more of the stack than the manual says."""
    outcome = run([neighbours, "stacks"], env={**MODES, "flips": FLIPS}[mode])
    assert outcome.code == 0 and outcome.report.sdp_bytes > 10_000, outcome.describe()
    assert max(outcome.seen.values()) <= STACK_MAX, outcome.describe()
    assert outcome.seen["send, recv"] > 0, "nothing was measured"


@pytest.mark.parametrize("mode", MODES)
def test_smallest_stack(neighbours, mode):
    """A thread with the smallest stack that there is may do everything."""
    fine(run([neighbours, "tiny"], sdp=False))
    accelerated(run([neighbours, "tiny"], env=MODES[mode]))
