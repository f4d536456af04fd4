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


def test_young_across_fork():
    # Whether any of it gets a lane depends on when the child is gone.
    seen = scenario("traps", "young_across_fork", 6, env=EAGER, limit_s=LIMIT_S).seen
    assert seen == {"seen": [[0, 0, True]] * 6}, seen


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
