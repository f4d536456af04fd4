"""Runs a scenario program over plain TCP and over SDP, and compares what the program saw.

A scenario is one command that makes its own processes, connects them over loopback and prints one
line of JSON: what the program got from its calls. Everything a run starts is in a process group of
its own, is bounded in time, and is ended with it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from support.report import Report, assert_flipped, check_sums
from support.stage import Artifacts, python

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
TARGET = Path(os.environ.get("SDP_TEST_TARGET", HERE.parent.parent / "target")).resolve()
SDP = TARGET / "release" / "sdp"
LIMIT_S = 30
# Lanes from the first byte on: for scenarios that are not about being young.
EAGER = {"SDP_PROMOTE_CALLS": "0", "SDP_PROMOTE_BYTES": "0"}
# How a lane ends with its connection.
AT_THE_END = {"peer-gone", "peer-switched"}
# All that one end sends and receives while it earns its lanes: `ping(50)` of ends.h, `warm_up` of ends.py.
PINGED, WARMED = 2 * 50 * 100, 2 * 40 * 32


def flips(seed):
    """The same, with lanes that change at calls which a seed chooses: this one if none is asked for."""
    return {**EAGER, "SDP_TEST_LANE_FLIP": os.environ.get("SDP_TEST_SEED", str(seed))}


FLIPS = flips(7)


def seeds(count, share=1):
    """Seeds of random cases, `count` of them unless FAULT_SEEDS says how many; of long ones one of
    `share`."""
    first = int(os.environ.get("FAULT_FIRST", "0"))
    return range(first, first + max(1, int(os.environ.get("FAULT_SEEDS", str(count))) // share))


class Outcome:
    """What a run left: exit status, JSON line, report."""

    def __init__(self, code, out, err, report):
        self.code, self.out, self.err, self.report = code, out, err, report

    @property
    def seen(self):
        """The scenario's last line of output, as JSON."""
        lines = [line for line in self.out.splitlines() if line.startswith("{")]
        assert lines, f"no result: {self.describe()}"
        return json.loads(lines[-1])

    def describe(self):
        """Everything, for a failure message."""
        report = self.report.describe() if self.report else "no report"
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}\n--- {report}"


def wait(process, limit_s):
    """The exit status of a process that ends within so many seconds in which this process could run: a virtual machine may
    stand still for a minute, and none of its processes is late by that."""
    for _ in range(limit_s):
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            pass
    raise subprocess.TimeoutExpired(process.args, limit_s)


def run(argv, *, tool=SDP, sdp=True, env=None, limit_s=LIMIT_S, options=(), rules=None):
    """Runs `argv` to its end; a failure if it does not end in time or leaves processes behind."""
    argv = [str(word) for word in argv]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    env.pop("LD_PRELOAD", None)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "report"
        if sdp:
            # A broken rule file is refused by the tool; here the library itself must cope with it.
            sink = ["env", f"LIBSDP_CONFIG_FILE={rules}"] if rules else []
            argv = [str(tool), "run", "--no-config", *options, "--report", str(path), "--", *sink, *argv]
        with open(Path(scratch) / "out", "w+b") as out, open(Path(scratch) / "err", "w+b") as err:
            process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            is_late = False
            try:
                code = wait(process, limit_s)
            except subprocess.TimeoutExpired:
                is_late, code = True, None
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            out.seek(0)
            err.seek(0)
            texts = [f.read().decode(errors="replace") for f in (out, err)]
        report = Report.read("report", path) if sdp and path.exists() else None
    outcome = Outcome(code, *texts, report)
    assert not is_late, f"not ended after {limit_s} s: {argv}\n{outcome.describe()}"
    return outcome


def scenario(module, name, *args, public=False, **options):
    """Runs one scenario of `programs/<module>.py`; it must succeed.

    `public`: from copies that every user can read, under the distribution's interpreter.
    """
    if public:
        artifacts = Artifacts(TARGET, PROGRAMS)
        try:
            argv = [python(), artifacts.programs / f"{module}.py", name, *args]
            outcome = run(argv, tool=artifacts.sdp, **options)
        finally:
            artifacts.close()
    else:
        outcome = run([sys.executable, PROGRAMS / f"{module}.py", name, *args], **options)
    assert outcome.code == 0, outcome.describe()
    return outcome


def both(module, name, *args, env=None, is_accelerated=True, **options):
    """Runs a scenario over TCP and over SDP: the same result, and payload on the SDP lane."""
    plain = scenario(module, name, *args, sdp=False, **options)
    outcome = scenario(module, name, *args, env=env, **options)
    assert outcome.seen == plain.seen, (
        f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    )
    assert outcome.report and (outcome.report.sdp_bytes > 0) == is_accelerated, outcome.describe()
    return outcome


def on_lanes(outcome, *, young=WARMED, but=AT_THE_END):
    """Every end came onto its lanes and stayed there until its connection ended.

    A warm-up alone does not do: over TCP went no more than it may send (`young`, for each end), whatever came after it.
    `but`: for what reasons lanes may be left.
    """
    report = outcome.report
    left = {reason for reason, times in report.raw["demotions"].items() if times}
    assert left <= set(but), outcome.describe()
    assert not any(report.raw["reasons"].values()), outcome.describe()
    assert report.sdp_bytes > 0 and report.tcp_bytes <= report.seen * young, outcome.describe()


def flipped(outcome, plain):
    """What a run with lanes that change at random calls showed is what one over TCP did, and lanes did change."""
    assert outcome.code == plain.code == 0, f"{plain.describe()}\n{outcome.describe()}"
    assert outcome.seen == plain.seen, (
        f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    )
    assert_flipped(outcome.report)
    check_sums(outcome.report)
    return outcome


def compiled(source, *flags):
    """Compiles a C program of `programs/`; the path of the binary."""
    directory = TARGET / "faults"
    directory.mkdir(parents=True, exist_ok=True)
    source = PROGRAMS / source
    binary = directory / source.stem
    newest = max(path.stat().st_mtime for path in [source, *PROGRAMS.glob("*.h")])
    if not binary.exists() or binary.stat().st_mtime < newest:
        fresh = binary.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", source, "-o", fresh, *flags],
            check=True,
        )
        fresh.rename(binary)
    return binary
