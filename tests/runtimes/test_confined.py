"""Processes that give up privileges or lack what others have: same results, the right lane, nothing left."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from faults.harness import PROGRAMS as SHARED
from faults.harness import FLIPS, run
from support.report import assert_flipped, check_sums
from support.stage import Artifacts, python

from .cache import HERE, TARGET

LIMIT_S = 90
# A real change of privilege ends all lanes, for the reason named.
LEAVE = {
    "setuid": "privilege",
    "setgid": "privilege",
    "setgroups": "privilege",
    "capset": "privilege",
    "chroot": "privilege",
    "newuser": "privilege",
    "newnet": "namespace",
}
# As the first change of a process, and the only one, each call does.
ALONE = [
    *(f"only-{call}" for call in ("setuid", "setgid", "setreuid", "setreuid-real", "setregid", "setregid-real")),
    *(f"only-{call}" for call in ("setresuid", "setresuid-saved", "setresgid-saved", "initgroups")),
    *(f"syscall-{call}" for call in ("setuid", "setgid", "setreuid", "setregid", "setgroups", "setresuid", "setresgid")),
    "keepcaps",
]
# These are none.
STAY = ["dumpable", "nonewprivs", "toggle"]
STAY_ALONE = [
    *(f"only-{call}" for call in ("seteuid", "setegid", "setfsuid")),
    "syscall-setresuid-effective",
    "same-setuid",
    "same-setresgid",
]
OTHER_USER = 54321

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give it up")


@pytest.fixture(scope="module")
def place():
    """Copies of programs, library and tools that every user can read."""
    artifacts = Artifacts(TARGET)
    shutil.copy(SHARED / "ends.py", artifacts.dir)
    shutil.copy(HERE / "programs" / "confined.py", artifacts.dir)
    yield artifacts
    artifacts.close()


def both(place, *call, surroundings=None, env=None):
    """A scenario over TCP and under the library, which must give the same; the run under the library.

    `surroundings`: a shell command that changes a mount namespace of their own first.
    """
    argv = [python(), place.dir / "confined.py", *call]
    if surroundings:
        words = [str(word) for word in argv]
        argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", f'{surroundings} && exec "$@"', "sh"]
        argv += words
    plain = run(argv, sdp=False, limit_s=LIMIT_S)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, tool=place.sdp, limit_s=LIMIT_S, env=env)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == plain.seen, f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    check_sums(outcome.report)
    return outcome


def left_lanes(outcome, reason):
    """Both directions left the SDP lane for the reason, and all bulk went over TCP."""
    report = outcome.report
    assert report.count("demotions", reason) == 2, outcome.describe()
    assert 0 < report.sdp_bytes < report.tcp_bytes / 10, outcome.describe()


def on_lanes(outcome):
    """No lane was left before the end; what came after the first calls went over SDP."""
    report = outcome.report
    at_the_end = {"peer-gone", "peer-switched"}
    assert report.raw["demotions"].keys() <= at_the_end, outcome.describe()
    assert report.raw["reasons"] == {}, outcome.describe()
    assert report.sdp_bytes > 20 * report.tcp_bytes, outcome.describe()


@pytest.mark.parametrize("unread", ["unread", "read"])
@pytest.mark.parametrize("what", LEAVE)
def test_leaves(place, what, unread):
    """Nothing is mapped and no descriptor open any more by which relatives or peers could be reached."""
    outcome = both(place, "changes", what, unread)
    left_lanes(outcome, LEAVE[what])
    assert outcome.seen["left"] == [], outcome.describe()


@pytest.mark.parametrize("what", ALONE)
def test_leaves_by_one_call(place, what):
    """The other end hears of it, and nothing is left here, whichever of the calls is the first."""
    outcome = both(place, "changes", what, "unread")
    left_lanes(outcome, "privilege")
    assert outcome.report.count("demotions", "peer-switched") == 2, outcome.describe()
    assert outcome.seen == {"fine": True, "left": [], "end": [0, "EOF", 0]}, outcome.describe()


@pytest.mark.parametrize("unread", ["unread", "read"])
@pytest.mark.parametrize("what", LEAVE)
def test_worker(place, what, unread):
    """The same in a worker that a privileged parent has made."""
    left_lanes(both(place, "worker", what, unread), LEAVE[what])


# A process with threads may not enter a user namespace.
@pytest.mark.parametrize("what", [what for what in LEAVE if what != "newuser"])
def test_threaded(place, what):
    """Beside another thread nothing is left once the connection is closed."""
    outcome = both(place, "threaded", what)
    left_lanes(outcome, LEAVE[what])
    assert outcome.seen["left"] == [], outcome.describe()


@pytest.mark.parametrize("what", [*STAY, *STAY_ALONE])
def test_stays(place, what):
    """What changes no privilege ends no lane."""
    # What the library has mapped is no secret here: only what the program saw counts.
    argv = [python(), place.dir / "confined.py", "changes", what, "read"]
    outcome = run(argv, tool=place.sdp, limit_s=LIMIT_S)
    assert outcome.code == 0 and outcome.seen["fine"], outcome.describe()
    assert outcome.seen["end"] == [0, "EOF", 0], outcome.describe()
    # The look that finds nothing after a change finds it here.
    assert any("memfd:sdp" in name for name in outcome.seen["left"]), outcome.describe()
    on_lanes(outcome)


@pytest.mark.parametrize("what", LEAVE)
def test_young(place, what):
    """A connection that had earned nothing yet works; with an owner other than its process it stays TCP."""
    outcome = both(place, "young", what)
    if what == "setuid":
        named = outcome.report.raw["reasons"].keys()
        assert outcome.report.sdp_bytes == 0, outcome.describe()
        # Who may not look through other processes any more cannot tell that it is the only holder.
        assert named & {"privilege", "uid-differs", "not-sole"}, outcome.describe()


@pytest.mark.parametrize("what", ["keepcaps", "only-seteuid", "syscall-setresuid-effective"])
def test_young_of_another_user(place, what):
    """Who may look through /proc sees that nobody else holds it: whose the connection is is all that is wrong."""
    outcome = both(place, "young", what)
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.raw["demotions"] == {}, outcome.describe()
    assert outcome.report.raw["reasons"]["uid-differs"] == 1, outcome.describe()
    assert outcome.report.raw["reasons"].keys() <= {"uid-differs", "peer-not-listening", "peer-refused"}, outcome.describe()


@pytest.mark.parametrize("what", ["setuid", "setgid", "setgroups", "capset", *STAY])
def test_later(place, what):
    """Connections that the changed process makes are its own, and earn lanes as any other's."""
    on_lanes(both(place, "later", what))


def test_later_unmapped(place):
    """A process whose own user this namespace has no name for proves nothing."""
    outcome = both(place, "later", "newuser")
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.count("reasons", "uid-unmapped") > 0, outcome.describe()


def proved_or_not(outcome):
    """Without /proc the other end is found by sock_diag; without that too it is TCP, and says why."""
    if outcome.report.count("reasons", "no-proc"):
        assert outcome.report.sdp_bytes == 0, outcome.describe()
    else:
        on_lanes(outcome)


def test_later_in_a_jail(place):
    """A changed root has no /proc: an end shows its socket all the same, unless a filter may forbid the call for that."""
    is_filtered = "Seccomp:\t0" not in Path("/proc/self/status").read_text(encoding="ascii")
    (proved_or_not if is_filtered else on_lanes)(both(place, "later", "chroot"))


CASES = {"root": ["one_echo"], "user": ["as_user", OTHER_USER], "two-users": ["two_users"]}


@pytest.mark.parametrize("case", CASES)
def test_users(place, case):
    """Root, any other user, two users who are not root and not each other."""
    on_lanes(both(place, *CASES[case]))


@pytest.fixture(scope="module")
def may_mount():
    """Skips where no mount namespace can be made."""
    probe = ["unshare", "-m", "--propagation", "private", "mount", "-t", "proc", "proc", "/proc"]
    if subprocess.run(probe, check=False, capture_output=True, timeout=LIMIT_S).returncode:
        pytest.skip("no mount namespace here")


@pytest.mark.usefixtures("may_mount")
@pytest.mark.parametrize("case", CASES)
def test_hidepid(place, case):
    """Other users' processes are not to be seen in /proc."""
    on_lanes(both(place, *CASES[case], surroundings="mount -t proc -o hidepid=2 proc /proc"))


@pytest.mark.usefixtures("may_mount")
@pytest.mark.parametrize("case", CASES)
def test_no_proc(place, case):
    """/proc is an empty directory."""
    proved_or_not(both(place, *CASES[case], surroundings="mount -t tmpfs none /proc"))


@pytest.mark.usefixtures("may_mount")
@pytest.mark.parametrize("case", CASES)
def test_no_locked_memory(place, case):
    """Nothing of ours is locked in memory, nor in a file system that could be full or read-only."""
    surroundings = "mount -t tmpfs -o ro none /dev/shm && ulimit -l 0"
    on_lanes(both(place, *CASES[case], surroundings=surroundings))


FLIPPED = [("changes", what, "unread") for what in LEAVE]
FLIPPED += [("worker", "setuid", "unread"), ("worker", "newnet", "read"), ("threaded", "setuid"), ("later", "setuid")]


@pytest.mark.parametrize("call", FLIPPED, ids=" ".join)
def test_with_lanes_that_flip(place, call):
    """Whichever lane each direction is on when the change comes: the same bytes, and nothing is left."""
    assert_flipped(both(place, *call, env=FLIPS).report)
