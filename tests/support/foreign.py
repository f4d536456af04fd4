"""Other people's tests, compared test by test: not one fails under the library that passes without.

A *suite* (see `Suite`) knows how to run some tests of a program and how to read their outcomes. It
runs plain, under the library, and under the library with lanes that flip at random positions on every
call. A test that fails under the library only is run again by itself, several times without the
library: what fails there once is the test's own weakness, and the summary names it. One that is listed
to hold elapsed time against a tight limit (`exceptions.LATE`) may do so at a second attempt under the
library, and the summary says that it did. Not so any test of timeouts: a wake-up that is lost shows as
one. Nothing else is forgiven: there is no list of tests that may fail.
"""

import hashlib
import os
import re
import warnings

from exceptions import LATE

from .procs import Timeout
from .report import check_sums
from .space import Space
from .stage import Placement, Stage

# A hung or crashed test ends the process; the rest goes on in a new one, at most so often.
MAX_RESUMES = 8
# Repetitions without the library that a suspect must survive to count against the library.
PLAIN_REPEATS = 3
# The usual bound for `Suite.little`, in bytes.
LITTLE = 100_000
# Bytes of each log that are shown after a failure.
LOG_SHOWN = 20_000


# By what the part that is played of what is too much for every run is chosen. Unless another one is
# asked for it is always the same part: a gate that changed by itself would fail where nothing was
# changed.
FIXED = 0
ROTATION = int(os.environ.get("SDP_TEST_ROTATION") or FIXED)
# Set: everything runs each time.
WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
BAD = ("fail", "error", "xpass", "crash")
# Outcomes from good to bad: a test with subtests may have several.
RANK = {"ok": 0, "skip": 1, "xfail": 2, "xpass": 3, "fail": 4, "error": 5, "crash": 6}


class Suite:
    """Some tests of one program."""

    # Seconds after which a run is ended and what it had begun has crashed.
    limit_s = 300
    # Payload, both ends, below which it need not have moved any over SDP.
    little = LITTLE
    # Tests that belong to every draw: of some suites many move no payload that could be on a lane.
    always = ()
    # User to run as, where the tests refuse to be root's.
    user = None

    def __init__(self, name):
        self.name = name

    def command(self, record, names):
        """Words that run the tests with these names (all, if there are none)."""
        raise NotImplementedError

    def environment(self):
        """Variables beside the stage's."""
        return {}

    def outcomes(self, record, output):
        """(outcome by test, whether the end was reached), from the record or the standard output."""
        return parse_record(record)

    def names(self, stage):
        """All tests; asked only after a crash."""
        raise NotImplementedError


def parse_record(record):
    """Reads lines `start ID`, then an outcome with the ID, and `end`. Begun and not ended is a crash."""
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


def run(ladder, placement, suite, names=()):
    """(outcome of each test, logs, reports) of one run; resumed after a crash."""
    space = Space(ladder.private)
    stage = Stage(placement, space, ladder.artifacts, ladder.flip_seed)
    try:
        outcomes, names = {}, list(names)
        label = re.sub(r"[^\w.]", "-", suite.name)
        for attempt in range(MAX_RESUMES):
            record = stage.dir / f"record{attempt}"
            program = stage.start(
                label, suite.command(record, names), env=suite.environment(), user=suite.user
            )
            try:
                stage.finish(program, suite.limit_s, ok=range(-64, 256))
            except Timeout:
                pass
            done, whole = suite.outcomes(record, program.output().decode(errors="replace"))
            outcomes.update(done)
            if whole:
                break
            names = [name for name in names or suite.names(stage) if name not in outcomes]
            if not names:
                break
        stage.close()
        logs = "\n".join(
            path.read_bytes()[-LOG_SHOWN:].decode(errors="replace")
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


class Comparison:
    """What the tests of one file share: plain outcomes by suite, from one run each."""

    def __init__(self, ladder):
        self.ladder = ladder
        self._plain = {}

    def listed(self, suite):
        """All tests of a suite."""
        space = Space(self.ladder.private)
        stage = Stage(Placement.PLAIN, space, self.ladder.artifacts)
        try:
            return suite.names(stage)
        finally:
            stage.abandon()
            stage.remove()
            space.close()

    def plain(self, suite, sample=None):
        """Outcomes without the library."""
        if suite.name not in self._plain:
            names = ()
            if sample:
                listed = self.listed(suite)
                drawn = {*rotated(listed, sample, suite.name), *suite.always}
                names = [name for name in listed if name in drawn]
            outcomes, logs, _ = run(self.ladder, Placement.PLAIN, suite, names)
            assert outcomes, f"no test ran\n{logs}"
            self._plain[suite.name] = outcomes
        return self._plain[suite.name]

    def check(self, suite, placement, sample=None):
        """Every test that passes plain passes under the library; `sample`: of so many tests."""
        expected = self.plain(suite, sample)
        names = list(expected) if sample else ()
        found, logs, reports = run(self.ladder, placement, suite, names)
        assert reports, "no report"
        suspects = [name for name, outcome in expected.items() if is_worse(outcome, found.get(name))]
        for _ in range(PLAIN_REPEATS if suspects else 0):
            again = run(self.ladder, Placement.PLAIN, suite, suspects)[0]
            weak = [name for name in suspects if again.get(name) in BAD]
            for name in weak:
                # In the summary, of a run that passes too.
                warnings.warn(f"{name} failed once; without the library too: {again[name]}", stacklevel=2)
            suspects = [name for name in suspects if name not in weak]
        # On a busy machine such a test is late now and then, with or without the library.
        late = [name for name in suspects if found.get(name) == "fail" and name in LATE]
        if late:
            again = run(self.ladder, placement, suite, late)[0]
            for name in late:
                warnings.warn(f"{name} failed once; again: {again.get(name)}", stacklevel=2)
            late = [name for name in late if not is_worse(expected[name], again.get(name))]
            suspects = [name for name in suspects if name not in late]
        described = [f"{name}: {expected[name]} plain, {found.get(name)}" for name in suspects]
        if suspects:
            print(logs, *described, sep="\n")
        passed = sum(outcome == "ok" for outcome in expected.values())
        under = sum(found.get(name) == "ok" for name in expected)
        print(f"{suite.name}: {len(expected)} tests, {passed} pass plain, {under} under the library, "
              f"seed {self.ladder.flip_seed}")
        assert not suspects, described
        assert passed, "not one test passes plain"
        for report in reports:
            check_sums(report)
        if placement is Placement.FLIP:
            assert_moved(suite, reports)


def is_worse(plain, found):
    """A test that does not fail plain may not fail, and one that passes may not be skipped."""
    return plain not in BAD and (found is None or found in BAD or (plain == "ok" and found == "skip"))


def assert_moved(suite, reports):
    """A suite that moves payload over TCP moved some of it over SDP."""
    seen = sum(report.seen for report in reports)
    moved = sum(report.sdp_bytes for report in reports)
    total = moved + sum(report.tcp_bytes for report in reports)
    if total > suite.little:
        assert moved, f"{suite.name}: {seen} ends of connections, not one byte over SDP"


def rotated(items, count, what="", fixed=()):
    """`count` of the items, in their order, chosen by the rotation; all with `SDP_TEST_WHOLE`.

    `fixed`: the part that is played unless a rotation is asked for, where it was chosen by hand.

    Each item has its place in the draw by its own name: where one comes or goes, at most one of the
    others does.
    `what`: whose items, so that two lists with the same names are not drawn alike.
    """
    if WHOLE or count >= len(items):
        return list(items)
    if fixed and ROTATION == FIXED:
        assert set(fixed) <= set(items), f"not among the {what}: {set(fixed) - set(items)}"
        return list(fixed)

    def place(item):
        return hashlib.sha256(f"{ROTATION} {what} {item}".encode()).digest()

    chosen = set(sorted(items, key=place)[:count])
    return [item for item in items if item in chosen]
