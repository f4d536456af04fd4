"""New holders that know only the kernel's stream: how much is unread, what the peer is about, who the holder is.

Which way the unread bytes go shows in the new holder: where a relay has taken the carrier's place, its other
end has another port.
"""

import os
import shutil
import tempfile

import pytest

from .harness import EAGER, both, compiled, on_lanes, run, scenario

RING = {"SDP_RING_BYTES": "4194304"}
FLIPS = {**RING, **EAGER, "SDP_TEST_LANE_FLIP": "11"}
# From one byte to what a ring of that size just holds.
SIZES = [1, 20_000, 400_000, 3_500_000]
# How a connection goes to the next holder, and the reason in the report.
WAYS = {"standard": "standard-descriptor", "numbered": "exec", "passed": "passed"}
# Unread bytes go back through the peer's socket while it has one.
ALIVE = ["reading", "silent", "stopped"]
GONE = ["closed", "killed"]
USER = 54321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture(scope="module")
def unaware():
    """The new holder."""
    return compiled("unaware.c", "-static")


def beyond_warm_up(outcome, payload):
    """What was to be left unread went into the ring."""
    assert outcome.report.count("bytes", "sdp_sent") >= payload, outcome.describe()


def relayed_by_size(outcome):
    """Which sizes came by a relay, without what all of them must show."""
    for turn in outcome.seen.values():
        assert turn["fine"] and turn["codes"] == [0, 0] and turn["end"] == "more", outcome.describe()
    return {size: turn["relayed"] for size, turn in outcome.seen.items()}


@pytest.mark.parametrize(
    ("how", "way"),
    # `left_behind` of `handing` has the others whose peer has closed.
    [(how, way) for how in [*ALIVE, "killed"] for way in WAYS] + [("closed", "numbered")],
)
def test_unread(unaware, how, way):
    """Every byte, however many, and then a conversation, if there is anybody to talk with."""
    plain = scenario("holders", "unread", how, way, unaware, *SIZES, sdp=False)
    outcome = scenario("holders", "unread", how, way, unaware, *SIZES, env=RING)
    assert relayed_by_size(plain) == {str(size): False for size in SIZES}
    assert relayed_by_size(outcome) == {str(size): how in GONE for size in SIZES}, outcome.describe()
    # Both directions of each connection.
    assert outcome.report.count("demotions", WAYS[way]) == 2 * len(SIZES), outcome.describe()
    beyond_warm_up(outcome, sum(SIZES))


@pytest.mark.parametrize(("how", "way"), [("silent", "standard"), ("stopped", "passed"), ("killed", "numbered")])
def test_unread_with_flips(unaware, how, way):
    """What is unread lies in pieces on both lanes."""
    outcome = scenario("holders", "unread", how, way, unaware, *SIZES, env=FLIPS)
    relayed_by_size(outcome)
    assert outcome.report.count("demotions", "test-flip") > 0, outcome.describe()


@pytest.mark.parametrize("how", ALIVE)
def test_kept_by_the_parent(unaware, how):
    """A service that closes its connection only when the program that it started has read: no byte is missing
    while the peer lives."""
    outcome = both("holders", "kept", how, "standard", unaware, 400_000, env=RING)
    assert outcome.seen["fine"] and outcome.seen["codes"] == [0, 0], outcome.describe()
    beyond_warm_up(outcome, 400_000)


def test_more_than_the_kernel_takes(unaware):
    """The peer's socket is there, and has no room: over TCP so much could not lie unread."""
    outcome = scenario("holders", "stuffed", "passed", unaware, 3_500_000, env=RING)
    assert outcome.seen == {"fine": True, "relayed": True, "codes": [0, 0], "end": "more"}, outcome.describe()
    beyond_warm_up(outcome, 3_500_000)


@pytest.fixture
def public(unaware):
    """The new holder, where users who are not root find it too."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield shutil.copy(unaware, directory)


@needs_root
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["undumpable", "other-user"])
def test_refused(public, how, way):
    """A living peer's socket is not to be had: a relay delivers, and carries both directions on."""
    plain = scenario("holders", "refused", how, way, public, 400_000, public=True, sdp=False)
    outcome = scenario("holders", "refused", how, way, public, 400_000, public=True)
    assert plain.seen == {"fine": True, "relayed": False, "codes": [0, 0], "end": "more"}
    assert outcome.seen == {**plain.seen, "relayed": True}, outcome.describe()
    assert outcome.report.count("demotions", WAYS[way]) == 2, outcome.describe()
    beyond_warm_up(outcome, 400_000)


# Ways to start a program with a connection that the parent keeps, and the reason in the report.
STARTERS = {
    "popen-stdin": "standard-descriptor",
    "popen-pass": "exec",
    "popen-searched": "standard-descriptor",
    "popen-spawn": "standard-descriptor",
    "spawn-dup": "exec",
    "spawn-kept": "exec",
    "fork-dup": "exec",
    "fork-stdin": "standard-descriptor",
    "fork-kept": "exec",
}


@pytest.mark.parametrize(
    ("how", "starter"),
    # The number of its parent's that a spawned program gets cannot be made to name anything else.
    [(how, starter) for how in [*ALIVE, *GONE] for starter in STARTERS if how in ALIVE or starter != "spawn-kept"],
)
def test_started(unaware, how, starter):
    """With vfork, fork and posix_spawn, on a standard descriptor and others: the program gets every byte, and a
    conversation."""
    plain = scenario("holders", "started", how, starter, unaware, 400_000, sdp=False)
    outcome = scenario("holders", "started", how, starter, unaware, 400_000, env=RING)
    assert plain.seen == {"fine": True, "relayed": False, "codes": [0, 0], "end": "more"}, plain.describe()
    assert outcome.seen == {**plain.seen, "relayed": how in GONE}, outcome.describe()
    # Where the program gets a copy, what is unread stays in the ring.
    assert outcome.report.count("demotions", STARTERS[starter]) in ([2] if how in ALIVE else [1, 2]), outcome.describe()
    beyond_warm_up(outcome, 400_000)


@pytest.mark.parametrize("starter", ["stdin", "stdout", "passed", "forked", "missing", "directory"])
def test_parent_reads_on(starter):
    """Of a connection whose peer is gone the program reads a little, or nothing, or is none: the parent finds what it
    would find without the program, or what that has read as well."""
    outcome = both("holders", "read_on", starter, env=RING)
    assert outcome.seen["rest"] and outcome.seen["end"] == "EOF", outcome.describe()
    beyond_warm_up(outcome, 20_000)


@pytest.mark.parametrize("starter", ["popen-stdin", "popen-pass", "spawn-dup", "fork-dup"])
@pytest.mark.parametrize("how", ["silent", "closed"])
def test_started_with_flips(unaware, how, starter):
    """What is unread lies in pieces on both lanes."""
    outcome = scenario("holders", "started", how, starter, unaware, 400_000, env=FLIPS)
    assert outcome.seen["fine"] and outcome.seen["codes"] == [0, 0], outcome.describe()
    assert outcome.report.count("demotions", "test-flip") > 0, outcome.describe()


def test_vforked():
    """A child of vfork gives its image a connection on another number."""
    outcome = compared("numbered")
    assert outcome.report.count("demotions", "exec") == 2, outcome.describe()


def test_number_used_again_in_a_vforked_child():
    """What a child of vfork closes and opens is nothing to its parent, whose connection stays where it is."""
    on_lanes(compared("reused"), young=10_000)


def compared(case):
    """A case of `vforked.c`, over TCP and with the library."""
    argv = [compiled("vforked.c"), case]
    plain = run(argv, sdp=False)
    outcome = run(argv, env=EAGER)
    assert plain.seen == outcome.seen == {"fine": True}, outcome.describe()
    beyond_warm_up(outcome, 200_000)
    return outcome


@pytest.mark.parametrize("how", ["silent", "closed"])
def test_not_started(unaware, how):
    """A program that is not there takes nothing along."""
    outcome = both("holders", "not_started", how, unaware, env=RING)
    assert outcome.seen == {"fine": True, "end": "EOF", "code": 0}, outcome.describe()
    beyond_warm_up(outcome, 20_000)


LINE_BY_LINE = 'while read -r line; do echo "$line"; done'
IMAGES = {
    "cat": ["cleared", shutil.which("cat")],
    "shell": ["cleared", "/bin/sh", "-c", LINE_BY_LINE],
    "set-id": ["kept", None],
}


@pytest.fixture
def set_id(tmp_path):
    """A copy of `cat` that the loader does not trust with libraries of the caller's choice."""
    if os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        pytest.skip(f"no set-id programs in {tmp_path}")
    copy = shutil.copy(shutil.which("cat"), tmp_path / "set-id")
    os.chown(copy, USER, -1)
    os.chmod(copy, 0o4755)
    return copy


@pytest.mark.parametrize("how", ["reading", "stopped", "closed"])
@pytest.mark.parametrize("image", ["cat", "shell", pytest.param("set-id", marks=needs_root)])
def test_image_without_the_library(request, image, how):
    """Programs of every day, where the loader does not hear of the library."""
    environment, *argv = IMAGES[image]
    if image == "set-id":
        argv = [request.getfixturevalue("set_id")]
    outcome = both("holders", "strange", how, 0, environment, *argv)
    user = USER if image == "set-id" else os.geteuid()
    assert outcome.seen == {"fine": True, "codes": [0, 0], "user": user}, outcome.describe()
    assert outcome.report.count("demotions", "standard-descriptor") == 2, outcome.describe()
    # What the peer sends to the image goes over TCP.
    assert outcome.report.count("bytes", "sdp_received") < 5_000, outcome.describe()
    beyond_warm_up(outcome, 20_000)


# What a relay's own connection takes over of the carrier.
CARRIED = [
    *["flags", "rcvtimeo", "sndtimeo", "keepalive", "linger", "lowat", "nodelay", "oobinline", "priority"],
    *["cork", "keepidle", "user_timeout", "tos", "owner", "signal"],
]


@pytest.mark.parametrize(("what", "way"), [*[("many", way) for way in WAYS], ("none", "standard"), ("owner", "numbered")])
def test_state_of_the_socket(unaware, what, way):
    """Flags and options that a program would notice are those that were set."""
    plain = scenario("holders", "state", "silent", way, unaware, what, sdp=False).seen
    pushed = scenario("holders", "state", "silent", way, unaware, what)
    assert pushed.seen == plain and not plain["relayed"], pushed.describe()
    # Who asks for signals leaves the lane for that.
    reason = "signal-driven" if what == "owner" else WAYS[way]
    assert pushed.report.count("demotions", reason) > 0, pushed.describe()
    relayed = scenario("holders", "state", "closed", way, unaware, what)
    assert relayed.seen["fine"] and relayed.seen["relayed"], relayed.describe()
    for name in CARRIED:
        assert relayed.seen["state"][name] == plain["state"][name], f"{name}\n{relayed.describe()}"
