"""Shared set-up of the end-to-end tests: one ladder per session, results recorded for xtask."""

import hashlib
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from support import limits
from support.check import Ladder
from support.foreign import ROTATION, WHOLE
from support.procs import become_subreaper
from support.report import WrongBytes

RECORD = os.environ.get("SDP_TEST_RESULTS")
TARGET = os.environ.get("SDP_TEST_TARGET", Path(__file__).resolve().parent.parent / "target")
MARKERS = (
    "quick: part of `cargo xtask test --quick`",
    "alone: about times or the whole machine; the ladder runs nothing beside it",
    "integrity: about bytes; one failure of it is a failure of the run, there is no second attempt",
)
# Tests that every ladder leaves out, and those that only the whole one plays: patterns of their names, with reasons.
LEFT_OUT = Path(__file__).with_name("left-out.txt")
TO_WHOLE = Path(__file__).with_name("left-to-whole.txt")
# Set: of the tests only those of the gate.
IS_GATE = bool(os.environ.get("SDP_TEST_GATE"))
# `COUNT SEED`: of all tests so many, drawn by the seed; what is left out may be among them.
DRAW = os.environ.get("SDP_TEST_DRAW")
# `alone`: only what wants to be alone; `2/3`: of the rest the second of three parts.
PART = os.environ.get("SDP_TEST_PART")
# Tests that have begun, with what their phases have told.
_begun = {}


def pytest_report_header():
    """Names what chooses the parts that take turns."""
    return f"rotation {ROTATION} (SDP_TEST_ROTATION)"


def pytest_configure(config):
    """Registers the markers; limits count the time in which tests could run; a shell's background job begins as one of its foreground."""
    limits.hold()
    # Another session's pytest would close the folder that all of a user's sessions have in common to other users.
    temporary = tempfile.mkdtemp(prefix="sdp-pytest-")
    os.chmod(temporary, 0o755)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = temporary
    config.add_cleanup(lambda: shutil.rmtree(temporary, ignore_errors=True))
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            # Programs that wait for the signal would do so for ever.
            signal.signal(number, usual)


def patterns(path):
    """The patterns of a list, by their order; `*` stands for anything. Lines about cargo's tests are not ours."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    found = {}
    for line in lines:
        pattern, _, reason = line.partition(" -- ")
        if not reason.strip():
            raise pytest.UsageError(f"{path.name}: no reason: {line}")
        if not line.startswith("unit "):
            found[pattern] = re.compile(re.escape(pattern.strip()).replace(r"\*", ".*"))
    return found


def drop(config, items, kept):
    """Leaves only some of the items."""
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def listed(items, path, mark):
    """The items that a list names; the record names each with the mark."""
    files = {item.nodeid.partition("::")[0] for item in items}
    listed_items = set()
    for name, shape in patterns(path).items():
        found = {item for item in items if shape.fullmatch(item.nodeid)}
        if RECORD and not found and name.partition("::")[0] in files:
            raise pytest.UsageError(f"{path.name}: no such test: {name}")
        listed_items |= found
    for item in sorted(listed_items, key=lambda item: item.nodeid):
        note(mark, item.nodeid)
    return listed_items


def of_extent(items):
    """The items that a ladder plays: the whole one, or the gate."""
    kept = set(items) - listed(items, LEFT_OUT, "left-out")
    if IS_GATE:
        kept -= listed([item for item in items if item in kept], TO_WHOLE, "to-whole")
    return kept


def of_part(items):
    """The items of the part that is asked for. Those that differ in their placement only share
    results, and stay together."""
    if PART == "alone":
        return {item for item in items if item.get_closest_marker("alone")}
    number, parts = map(int, PART.split("/"))
    kept, groups = set(), {}
    for item in items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        is_compared = parameters and "placement" in parameters
        rest = sorted((name, str(value)) for name, value in (parameters or {}).items() if name != "placement")
        group = (item.nodeid.partition("[")[0], str(rest)) if is_compared else item.nodeid
        if not item.get_closest_marker("alone") and groups.setdefault(group, len(groups)) % parts == number - 1:
            kept.add(item)
    return kept


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(config, items):
    """Drops what is left out, before pytest's own choice; then keeps what is drawn, or one part. A
    test that is asked for by its name is played."""
    is_named = any("::" in argument for argument in config.args)
    if not (is_named or DRAW or WHOLE):
        drop(config, items, of_extent(items))
    yield
    if DRAW and not is_named:
        count, seed = DRAW.split()
        order = sorted(items, key=lambda item: hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest())
        drop(config, items, set(order[: int(count)]))
    if PART and not is_named:
        drop(config, items, of_part(items))


def pytest_sessionfinish(session, exitstatus):
    """There may be nothing in a part."""
    if PART and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def ladder():
    """What all tests of the session share."""
    become_subreaper()
    shared = Ladder(TARGET)
    yield shared
    shared.close()


def processor_seconds():
    """What we and those of our children that have ended used of the processors."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Notes of a failure whether it is about bytes: by the test's marker, or by what it raised."""
    outcome = yield
    raised = call.excinfo is not None and isinstance(call.excinfo.value, WrongBytes)
    outcome.get_result().is_about_bytes = raised or item.get_closest_marker("integrity") is not None


def note(*fields):
    """One line of the record, on disk before anything else happens."""
    if RECORD:
        words = [str(field).replace("\n", " ").replace("\t", " ") for field in fields]
        with open(RECORD, "a", encoding="utf-8") as record:
            record.write("\t".join(words) + "\n")


def pytest_runtest_logstart(nodeid):
    """Announces a test, so that one that ends the session can be named."""
    _begun[nodeid] = {"at": time.monotonic(), "spent": processor_seconds(), "outcome": "passed", "mark": "", "reason": ""}
    note("begun", nodeid)


def pytest_runtest_logreport(report):
    """Of each test one line when it is over: outcome, name, seconds, processor seconds, mark, reason."""
    test = _begun[report.nodeid]
    if report.skipped and test["outcome"] == "passed":
        test["outcome"] = "skipped"
        test["reason"] = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    if report.failed:
        test["outcome"] = "failed"
        test["mark"] = "integrity" if report.is_about_bytes else test["mark"]
    if report.when == "teardown":
        took, spent = time.monotonic() - test["at"], processor_seconds() - test["spent"]
        note(test["outcome"], report.nodeid, f"{took:.2f}", f"{spent:.2f}", test["mark"], test["reason"])
        del _begun[report.nodeid]
