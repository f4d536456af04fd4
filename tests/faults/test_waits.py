"""Waits where the library does not see everything, or where the order counts.

Every case runs over plain TCP and under the library, and must print the same.
"""

import pytest

from .harness import EAGER, FLIPS, compiled, run

LIMIT_S = 60
MODES = pytest.mark.parametrize("env", [{}, EAGER], ids=["default", "eager"])


def same(program, *case, env=None, limit_s=LIMIT_S):
    """The same as over TCP; the run under the library."""
    argv = [compiled(program), *case]
    plain = run(argv, sdp=False, limit_s=limit_s)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, env=env, limit_s=limit_s)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == plain.seen, f"differs from plain TCP: {plain}\n{outcome.describe()}"
    return outcome


UNSEEN = ["received", "many", "memory"]


@MODES
@pytest.mark.parametrize("unread", ["unread", "read"])
@pytest.mark.parametrize("way", ["level", "edge"])
@pytest.mark.parametrize("how", UNSEEN)
def test_a_set_that_was_not_seen_made(how, way, unread, env):
    """Received, beyond the last one, made without memory: what is registered with it leaves its lane."""
    outcome = same("unseen.c", how, way, unread, env=env)
    assert outcome.seen["told"] == 3 and outcome.seen["quiet"] == 1, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()
    assert outcome.report.count("demotions", "unseen-set") > 0, outcome.describe()


@MODES
@pytest.mark.parametrize("how", ["kept", "member"])
def test_a_set_that_was_kept_over_exec(how, env):
    """With what is registered after it, and with what was before: a connection that earns no lanes in the new image."""
    outcome = same("unseen.c", how, "level", env=env)
    assert outcome.seen["told"] == 3 and outcome.seen["quiet"] == 1, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@MODES
def test_a_set_that_is_lent(env):
    """Another process waits on it for what is on a lane here."""
    outcome = same("unseen.c", "lent", "level", env=env)
    assert outcome.seen["told"] == 3, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize("how", [*UNSEEN, "kept", "member"])
def test_a_set_that_was_not_seen_made_beside_flips(how):
    assert same("unseen.c", how, "level", env=FLIPS).seen["told"] == 3


@MODES
@pytest.mark.parametrize("how", ["closed", "taken"])
def test_numbers_that_the_program_closes_or_takes(how, env):
    """The descriptors by which the other end is woken are not among them, and nothing is written to the program's files."""
    outcome = same("woken_numbers.c", how, env=env)
    assert outcome.seen == {"strange": 0, "late": False}, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


# Rounds of which two may go wrong: the kernel may put a message off when it is busy.
ROUNDS, MOST_WRONG = 100, 2


@pytest.mark.parametrize("most", [16, 1])
@pytest.mark.parametrize("case", ["young", "back", "forth"])
def test_what_was_sent_first_is_told_first(case, most):
    """On a young connection and one on its lane, and on two lanes, while the server was at something else."""
    argv = [compiled("order.c"), ROUNDS, case, 2, "gated", most]
    plain = run(argv, sdp=False, limit_s=LIMIT_S)
    assert plain.code == 0 and plain.seen["wrong"] <= MOST_WRONG, plain.describe()
    outcome = run(argv, limit_s=LIMIT_S)
    assert outcome.code == 0 and outcome.seen["wrong"] <= MOST_WRONG, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize("load", ["idle", "busy"])
@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("case", ["young", "fresh"])
def test_hardly_more_is_told_out_of_order_than_over_tcp(case, cpus, load):
    """The share of rounds, for which who gets a CPU when counts, too; the best of a few attempts."""
    rounds = 1500
    argv = [compiled("order.c"), rounds, case, cpus, load, 16]
    for _ in range(4):
        plain, outcome = (run(argv, sdp=sdp, limit_s=LIMIT_S) for sdp in (False, True))
        assert plain.code == outcome.code == 0, outcome.describe()
        if outcome.seen["wrong"] <= 2 * plain.seen["wrong"] + rounds // 50:
            break
    else:
        raise AssertionError(f"over TCP: {plain.seen}\n{outcome.describe()}")
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER, FLIPS], ids=["default", "eager", "flipped"])
def test_receive_calls_for_no_bytes(env):
    """Each call's own answer: with nothing there, while it waits, with bytes there, at the end."""
    outcome = same("none.c", env=env)
    assert outcome.report.sdp_bytes > 0, outcome.describe()


INHERITED = {
    "lowat": "low-watermark",
    "zerocopy": "zerocopy-option",
    "filter": "unsuitable-socket",
    "peek": "unsuitable-socket",
}


@MODES
@pytest.mark.parametrize("where", ["here", "far"])
@pytest.mark.parametrize("option", INHERITED)
def test_accepted_connections_have_options_of_their_listener(option, where, env):
    """Set there by this process, or by another one that has the listener: no lane, and the reason is told."""
    outcome = same("inherited.c", option, where, env=env)
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.count("reasons", INHERITED[option]) >= 1, outcome.describe()


@MODES
@pytest.mark.parametrize("where", ["here", "far"])
def test_times_of_arrival_take_the_lane_where_they_are_asked_for(where, env):
    """A call with room for control data is the kernel's, which adds them."""
    outcome = same("inherited.c", "stamp", where, env=env)
    assert outcome.report.count("demotions", "unsuitable-socket") >= 1, outcome.describe()


@MODES
@pytest.mark.parametrize(
    "option", ["linger", pytest.param("timeout", marks=pytest.mark.alone), "inline", "inq", "none"]
)
def test_options_of_the_listener_that_cost_no_lane(option, env):
    """They work on the lane."""
    outcome = same("inherited.c", option, env=env)
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@MODES
@pytest.mark.parametrize("way", ["level", "edge"])
def test_a_hand_over_that_waits_stops_no_other_set(way, env):
    """The kernel does not take what is unread for seconds; who waits for another connection is not late for it."""
    outcome = same("standing.c", way, env=env)
    assert outcome.seen == {"late": False, "event": 1}, outcome.describe()
    assert outcome.report.sdp_bytes > 0 and outcome.report.count("demotions", "stdio") > 0, outcome.describe()
