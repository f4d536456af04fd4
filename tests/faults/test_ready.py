"""What a wake-up costs is counted in instructions; times decide nothing."""

import resource
import select

import pytest

from .harness import AT_THE_END, EAGER, both, compiled, run

FEW, MANY = 50, 10_000
# Descriptors of a process beside its connections.
SPARE = 600
WAKES = 24
# A chain of a hash that is longer by one or two, a clock that had to be read twice.
TOLERANCE = 200
LEVEL = select.EPOLLIN
EDGE, ONCE = LEVEL | select.EPOLLET, LEVEL | select.EPOLLONESHOT


def wake(count):
    """Instructions of a wake-up with so many connections, all of them on their lanes."""
    # Nobody spins: what is counted is the same each time.
    env = {**EAGER, "SDP_RECV_POLL": "0"}
    outcome = run([compiled("ready.c"), count, WAKES], env=env, limit_s=240)
    assert outcome.code == 0, outcome.describe()
    report = outcome.report
    # Medians are compared: a few that did not get their lanes in time change nothing.
    assert report.seen == 2 * count, outcome.describe()
    assert report.count("connections", "sdp") >= 0.95 * report.seen, outcome.describe()
    return outcome.seen


def test_a_wake_up_costs_what_is_ready():
    """Ten thousand idle connections on their lanes add nothing to a wait of their set, awake or asleep. Each end is one
    process's: it has a descriptor for each of them."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < MANY + SPARE:
        pytest.skip(f"{MANY} connections need {MANY + SPARE} descriptors; the limit is {hard}")
    few, many = wake(FEW), wake(MANY)
    for how in ("there", "asleep"):
        # A single instruction per connection would be fifty times as much.
        assert many[how] <= few[how] + TOLERANCE, (few, many)


@pytest.mark.parametrize("looks", ["0", "20"])
@pytest.mark.parametrize("mode", ["level", "edge"])
def test_the_end_of_one_is_seen_while_another_rings(mode, looks):
    """A wake-up by the bell is not judged each time; what else came under its name is not lost."""
    both("rung", "the_end_of_each", mode, env={**EAGER, "SDP_RECV_POLL": looks})


@pytest.mark.parametrize("how", ["recv", "poll", "count"])
@pytest.mark.parametrize("mode", ["level", "edge", "once"])
def test_a_bell_that_a_call_takes(mode, how):
    """Where bells are bytes on the carrier, one that a receive call eats is no event for the set any more; the bytes that
    come next are one."""
    outcome = both("rung", "taken_by_a_call", mode, how, env=EAGER)
    assert outcome.seen == {"child": 0, "peer": 0}, outcome.describe()


def over_sdp_to_the_end(*call):
    """The scenario, whose connections stay on their lanes."""
    outcome = both("rung", *call, env=EAGER)
    assert outcome.report.raw["demotions"].keys() <= AT_THE_END, outcome.describe()
    return outcome


@pytest.mark.parametrize("mode", ["level", "edge"])
def test_what_a_woken_call_leaves(mode):
    """The same where the call takes only the beginning of what has come."""
    outcome = over_sdp_to_the_end("left_by_a_call", mode)
    assert outcome.seen == {"child": 0, "peer": 0}, outcome.describe()


@pytest.mark.parametrize("how", ["poll", "level", "edge"])
def test_what_a_call_leaves_beside_a_wait(how):
    """A wait may find its bell taken; what was left behind it it sees all the same."""
    outcome = over_sdp_to_the_end("left_beside_a_wait", how)
    assert outcome.seen == {"child": 0, "peer": 0}, outcome.describe()


@pytest.mark.parametrize("how", ["poll", "level", "edge"])
def test_what_a_call_leaves_beside_sleepers(how):
    """The same in a process that has a bell, but whose receive call was woken by the carrier."""
    outcome = over_sdp_to_the_end("left_beside_sleepers", how)
    assert outcome.seen == {"code": 0, "peer": 0}, outcome.describe()


@pytest.mark.parametrize("count", [2, 511, 512, 700])
def test_a_full_ring_is_not_writable_in_a_poll_of_many(count):
    """`poll` hides a carrier's "writable" from arrays of every length, and sees the room that comes."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < 1024:
        pytest.skip(f"700 entries need more descriptors than {soft}")
    both("polling", "room", count, env=EAGER)


def test_a_full_ring_and_no_descriptor():
    """Nobody can ring a `poll` that has nothing to be rung by: it looks each millisecond, not all the time."""
    outcome = both("polling", "room", 2, "none", env=EAGER)
    assert outcome.report.raw["waits"]["slept"] < 1000, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("events", [LEVEL, EDGE, ONCE, EDGE | select.EPOLLOUT], ids=["level", "edge", "once", "edge-out"])
def test_a_set_behind_lanes_that_were_left(events, env):
    """No event comes without bytes, and each with them."""
    outcome = both("polling", "left_asleep", events, env=env)
    assert outcome.seen["quiet"] and outcome.seen["lanes"] and outcome.seen["child"] == 0, outcome.describe()
    assert outcome.report.count("demotions", "shared") > 0, outcome.describe()
