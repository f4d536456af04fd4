"""Relatives that use one connection in turn, each killed in the middle of its calls: the next one goes on."""

import os

import pytest

from .harness import EAGER, compiled, run, seeds

# How each is killed, and how many there are. With `shared` a second relative looks on, so that the first
# death already ends the lanes: short, and more of them.
MODES = {"step": (60, 1), "time": (60, 1), "shared": (4, 4)}
# Instructions are stepped through one by one: on a busy machine that takes its time.
LIMIT_S = 120


def play(mode, seed, **options):
    generations, _ = MODES[mode]
    outcome = run([compiled("relatives.c"), mode, seed, generations], limit_s=LIMIT_S, **options)
    assert outcome.code == 0, outcome.describe()
    seen = outcome.seen
    assert seen["failed"] == "" and seen["killed"] == generations - 1, outcome.describe()
    assert seen["bytes"] > 0 and seen["got"] > 0, outcome.describe()
    return outcome


@pytest.mark.parametrize("flips", [False, True], ids=["stays", "flips"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", seeds(3))
def test_the_connection_outlives_its_users(seed, mode, flips):
    for round_ in range(MODES[mode][1]):
        each = seed * 100 + round_
        env = {**EAGER, **({"SDP_TEST_LANE_FLIP": str(each + 1)} if flips else {})}
        outcome = play(mode, each, env=env)
        assert outcome.report and outcome.report.sdp_bytes > 0, outcome.describe()


def test_so_it_is_over_tcp():
    for mode in MODES:
        play(mode, 1, sdp=False)
