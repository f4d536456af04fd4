"""CPython's own tests of sockets and waiting: not one fails that passes without the library.

Each module runs plain, under the library, and under the library with lanes that flip at random
positions on every call. Outcomes are compared test by test. A test that fails under the library is
run once more by itself without it: what fails there too is the test's own weakness.
"""

import os
from pathlib import Path

import pytest

from support import Placement, Stage
from support.procs import Timeout
from support.report import Report
from support.space import Space

PYTHON = "/usr/bin/python3.11"
RUNNER = Path(__file__).parent / "runner.py"
MODULES = [
    "test_socket",
    "test_selectors",
    "test_epoll",
    "test_poll",
    "test_select",
    "test_asyncio.test_streams",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_events",
    "test_ssl",
    "test_httplib",
    "test_socketserver",
]

# A hung or crashed test ends the process; the rest goes on in a new one, at most so often.
MAX_RESUMES = 8
MODULE_LIMIT_S = 400
# Payload, both ends, below which a module need not have moved any of it over SDP.
LITTLE = 100_000
BAD = ("fail", "error", "xpass", "crash")
# Outcomes from good to bad: a test with subtests may have several.
RANK = {"ok": 0, "skip": 1, "xfail": 2, "xpass": 3, "fail": 4, "error": 5, "crash": 6}


def parse(record):
    """(outcome by test, whether the end was reached) of a record."""
    outcomes = {}
    begun = []
    lines = record.read_text().splitlines() if record.exists() else []
    for line in lines:
        what, _, name = line.partition(" ")
        if what == "start":
            begun.append(name)
        elif what != "end" and RANK[what] >= RANK[outcomes.get(name, "ok")]:
            outcomes[name] = what
    for name in begun:
        outcomes.setdefault(name, "crash")
    return outcomes, bool(lines) and lines[-1] == "end"


def run(ladder, placement, module, names=()):
    """Outcome of each test of a module, log and reports; resumed after a crash."""
    space = Space(ladder.private)
    stage = Stage(placement, space, ladder.artifacts, ladder.flip_seed)
    try:
        outcomes, names = {}, list(names)
        for attempt in range(MAX_RESUMES):
            record = stage.dir / f"record{attempt}"
            argv = [PYTHON, RUNNER, module, record, *names]
            program = stage.start(module, argv)
            try:
                stage.finish(program, MODULE_LIMIT_S, ok=range(-64, 256))
            except Timeout:
                pass
            done, whole = parse(record)
            outcomes.update(done)
            if whole:
                break
            everything = names or listed(stage, module)
            names = [name for name in everything if name not in outcomes]
            if not names:
                break
        stage.close()
        logs = "\n".join(
            path.read_bytes()[-20000:].decode(errors="replace")
            for pattern in ("*.out", "*.err")
            for path in sorted(stage.dir.glob(pattern))
        )
        return outcomes, logs, stage.client_reports
    except BaseException:
        stage.abandon()
        raise
    finally:
        stage.remove()
        space.close()


def listed(stage, module):
    """All tests of a module, from a run that is not preloaded."""
    return stage.client("list", [PYTHON, RUNNER, module, "-"], plain=True).text.split()


@pytest.fixture(scope="module")
def plain(ladder):
    """Plain outcomes by module, from one run each."""
    results = {}

    def outcomes(module):
        if module not in results:
            results[module] = run(ladder, Placement.PLAIN, module)
        return results[module]

    return outcomes


@pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"not installed: {PYTHON}")
@pytest.mark.parametrize("placement", [Placement.BOTH, Placement.FLIP], ids=["normal", "flip"])
@pytest.mark.parametrize("module", MODULES)
def test_module(ladder, plain, module, placement):
    """Every test that passes plain passes under the library."""
    expected, plain_logs, _ = plain(module)
    assert expected, f"no test ran\n{plain_logs}"
    found, logs, reports = run(ladder, placement, module)
    assert reports, "no report"
    suspects = [
        name
        for name, outcome in expected.items()
        if outcome not in BAD and (found.get(name, "crash") in BAD or worse(outcome, found[name]))
    ]
    if suspects:
        again = run(ladder, Placement.PLAIN, module, suspects)[0]
        weak = [name for name in suspects if again[name] in BAD]
        if weak:
            print("fail without the library too:", *weak, sep="\n  ")
        suspects = [name for name in suspects if name not in weak]
    described = [f"{name}: {expected[name]} plain, {found.get(name, 'not run')}" for name in suspects]
    if suspects:
        print(logs)
        print(*described, sep="\n")
    print(f"{module}: {len(expected)} tests, seed of the flips {ladder.flip_seed}")
    assert not suspects, described
    if placement is Placement.FLIP:
        assert_moved(module, reports)


def worse(plain_outcome, found):
    """A test that passes plain may not be skipped under the library."""
    return plain_outcome == "ok" and found == "skip"


def assert_moved(module, reports):
    """The modules that move payload over TCP moved some of it over SDP."""
    assert all(isinstance(report, Report) for report in reports)
    seen = sum(report.seen for report in reports)
    moved = sum(report.sdp_bytes for report in reports)
    total = moved + sum(report.tcp_bytes for report in reports)
    if total > LITTLE:
        assert moved, f"{module}: {seen} ends of connections, not one byte over SDP"
