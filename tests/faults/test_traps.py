"""Traps that a design like this one falls into: the same as over plain TCP, on the lane.

Which test holds which trap is written down in `docs/testing.md`.
"""

import itertools

import pytest

from .harness import EAGER, both, on_lanes, scenario

LIMIT_S = 60
FLIP = {**EAGER, "SDP_TEST_LANE_FLIP": "7"}


@pytest.mark.parametrize("lanes", ["kept", "flipped"])
def test_edge_and_fionread(lanes):
    flips = lanes == "flipped"
    outcome = both("traps", "edge_and_fionread", 3, env=FLIP if flips else None, limit_s=LIMIT_S)
    if flips:
        assert outcome.report.count("demotions", "test-flip") > 0, outcome.describe()
    else:
        on_lanes(outcome)


@pytest.mark.parametrize("env", [EAGER, FLIP], ids=["kept", "flipped"])
def test_young_across_fork(env):
    outcome = scenario("traps", "young_across_fork", 20, env=env, limit_s=LIMIT_S)
    assert outcome.seen == {"seen": [[0, 0, True]] * 20}, outcome.describe()
    # Whether one of them gets a lane depends on when the child is gone. Of twenty some do, or are met and found shared.
    report = outcome.report
    assert report.count("connections", "sdp") + report.count("reasons", "not-sole") > 0, outcome.describe()


@pytest.mark.parametrize("trigger", ["level", "edge"])
@pytest.mark.parametrize("env", [{}, FLIP], ids=["kept", "flipped"])
def test_killed_in_a_send(env, trigger):
    outcome = both("traps", "killed_in_a_send", 2, trigger, env=env, limit_s=LIMIT_S)
    assert outcome.seen == {"lost": 0, "right": True, "child": 0}, outcome.describe()
    # More than the warm-up at both ends: what the writers sent.
    assert outcome.report.count("bytes", "sdp_received") > 3000, outcome.describe()


def test_helpers():
    outcome = both("traps", "helpers", limit_s=LIMIT_S)
    assert outcome.seen["fine"] and outcome.seen["codes"] == [0] * 20, outcome.describe()
    # Twenty texts of 50 000 bytes to and fro, on the lane but for little.
    assert outcome.report.count("bytes", "sdp_received") > 1_000_000, outcome.describe()


def test_unseen_change():
    outcome = both("traps", "unseen_change", limit_s=LIMIT_S)
    assert all(all(row) for row in outcome.seen["fine"]) and not any(outcome.seen["ends"]), outcome.describe()
    # Four connections that the library has seen on such numbers.
    assert outcome.report.count("bytes", "sdp_received") > 300_000, outcome.describe()


@pytest.mark.parametrize("first, second", [*itertools.product(["level", "edge", "poll"], repeat=2)])
def test_room_for_two(first, second):
    outcome = both("traps", "room_for_two", first, second, limit_s=LIMIT_S)
    assert outcome.seen["told"] == [True, True], outcome.describe()
    on_lanes(outcome)


@pytest.mark.parametrize("order", ["first", "last"])
def test_young_beside_a_lane(order):
    seen = both("traps", "young_beside_a_lane", order, limit_s=LIMIT_S).seen
    assert seen["seen"] == [[1, 7, "x"]] * 7, seen


def test_one_shot_after_eagain():
    outcome = scenario("traps", "one_shot_after_eagain", limit_s=LIMIT_S)
    wanted = {"early": False, "asked": [False], "told": True, "again": False, "enabled": True, "end": "", "child": 0}
    assert outcome.seen == wanted, outcome.describe()
    on_lanes(outcome)


@pytest.mark.parametrize(
    "name",
    [
        "closefrom_in_a_child",
        "unseen_close",
        "rewritten_environment",
        "one_cpu",
        "edge_of_room",
        "nested_epoll",
    ],
)
def test_trap(name):
    on_lanes(both("traps", name, limit_s=LIMIT_S))
