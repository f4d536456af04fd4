"""Connections that change hands by fork, exec and SCM_RIGHTS, with bytes unread in the ring."""

import os

import pytest

from .harness import both, compiled, on_lanes, scenario

IMAGES = ["unaware", "python"]


@pytest.fixture(scope="module")
def images():
    """Programs that get a connection: without and with the library."""
    return {"unaware": compiled("unaware.c", "-static"), "python": "python"}


@pytest.mark.parametrize("seed", range(3))
def test_used_by_both(seed):
    on_lanes(both("handing", "used_by_both", seed))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make process namespaces")
@pytest.mark.parametrize(
    ("how", "when"),
    # Where a new namespace is the first thing, the peer would be its init.
    [("unshare", "later")]
    + [(how, when) for how in ("setns", "any", "pidfd") for when in ("first", "later", "before-exec")],
)
def test_a_child_in_another_process_namespace(how, when):
    """It shares no lanes with its parent, and has its own; also if the namespace came before any socket."""
    outcome = both("elsewhere", "scenario", how, when)
    assert outcome.seen == {"fine": True, "child": 0, "peer": 0}, outcome.describe()
    assert outcome.report.count("demotions", "namespace") > 0, outcome.describe()
    assert "child attached: True" in outcome.err, outcome.describe()


def test_parent_writes_child_reads():
    on_lanes(both("handing", "parent_writes_child_reads"))


@pytest.mark.parametrize("unread", ["unread", "read"])
def test_child_goes_on(unread):
    on_lanes(both("handing", "child_goes_on", unread))


@pytest.mark.parametrize("how", ["close", "exit", "kill", "exec"])
def test_parent_goes_on(how):
    outcome = both("handing", "parent_goes_on", how)
    # Children that merely hold the connection cost it nothing.
    assert outcome.report.raw["demotions"] == {}, outcome.describe()
    on_lanes(outcome)


@pytest.mark.parametrize("place", ["", "part"])
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("style", ["asleep", "busy"])
def test_executed(images, style, image, place):
    both("handing", "executed", style, images[image], place)


@pytest.mark.parametrize("style", ["asleep", "busy"])
def test_executed_in_place(images, style):
    both("handing", "executed_here", style, images["unaware"])


@pytest.mark.parametrize("style", ["asleep", "busy"])
def test_inherited_by_popen(images, style):
    both("handing", "inherited_by_popen", style, images["unaware"])


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("style", ["asleep", "busy"])
def test_passed(images, style, image):
    outcome = both("handing", "passed", style, images[image])
    assert outcome.report.count("demotions", "passed") > 0, outcome.describe()


@pytest.mark.parametrize("size", [1, 400_000, 3_500_000])
@pytest.mark.parametrize("way", ["executed", "passed"])
@pytest.mark.parametrize("how", ["closed", "half", "forked"])
def test_left_behind(images, how, way, size):
    """A connection of our own takes the carrier's place: from one byte to more than a kernel's buffer."""
    ring = {"SDP_RING_BYTES": "4194304"}
    outcome = both("handing", "left_behind", how, way, images["unaware"], size, env=ring)
    assert outcome.seen["fine"], outcome.describe()


def test_passed_and_kept():
    both("handing", "passed_and_kept")


@pytest.mark.parametrize("how", ["close", "exit"])
def test_passed_with_a_request_unread(how):
    outcome = both("handing", "passed_with_a_request_unread", how)
    assert outcome.seen == {"code": 0, "fine": True, "lingers": False}, outcome.describe()


@pytest.mark.parametrize("big", [1, 500_000])
def test_spawned_with_a_request_unread(big):
    """All on TCP, where a helper that is spawned with a connection is never noticed."""
    plain = scenario("handing", "spawned_with_a_request_unread", big, sdp=False)
    outcome = scenario("handing", "spawned_with_a_request_unread", big)
    assert outcome.seen == plain.seen == {"helper": 0, "peer": 0}, outcome.describe()


@pytest.mark.parametrize("when", ["before", "after"])
def test_passed_while_a_relative_keeps_it(when):
    seen = scenario("handing", "passed_while_a_relative_keeps_it", when).seen
    assert seen == {"turns": 600, "codes": [0, 0, 0]}, seen


def test_renumbered():
    both("handing", "renumbered")


def test_leaked_into_helpers():
    on_lanes(both("handing", "leaked_into_helpers"))
