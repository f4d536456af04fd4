"""epoll sets on accelerated connections: shared by threads and processes, with other descriptors, signal masks.

Every case runs over plain TCP and with the library, and must print the same (`programs/sets.c`, `programs/masks.c`,
`programs/shared_set.c`).
"""

import sys

import pytest

from .harness import EAGER, PROGRAMS, compiled, run

LIMIT_S = 60
FLIPS = {**EAGER, "SDP_TEST_LANE_FLIP": "7"}
# Round trips of the warm-up, bytes of a message (sets.h): both ways, that much at most says nothing of what follows.
WARM_BYTES = 2 * 50 * 1024
# Of the payload after the warm-up.
LEAST = 0.9
# The kernel is asked in one of eight waits at least, if rings have something each time; where there is room for one event
# of its, it may have the library's wake-up and a carrier's to tell first.
MOST_CALLS = 8 * 3


def play(program, case, env=EAGER):
    """What a case saw over TCP, what it saw under the library, and the run."""
    argv = [compiled(program), *case.split()]
    plain = run(argv, sdp=False, limit_s=LIMIT_S)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, env=env, limit_s=LIMIT_S)
    assert outcome.code == 0, outcome.describe()
    return plain.seen, outcome.seen, outcome


def assert_lanes(outcome, *, least=LEAST):
    """What was received after the warm-up went over SDP, nearly all of it."""
    report, ends = outcome.report, outcome.report.seen
    # Connections without payload (callers that are only accepted) had no warm-up.
    warm = WARM_BYTES * (ends - report.count("reasons", "too-young")) // 2
    received = report.count("bytes", "sdp_received")
    assert received - warm >= least * outcome.seen["payload"], outcome.describe()


def same(program, case, env=EAGER):
    """The same as over TCP, and over SDP."""
    plain, seen, outcome = play(program, case, env)
    assert seen == plain, f"differs from plain TCP: {plain}\n{outcome.describe()}"
    if env is EAGER:
        assert_lanes(outcome)
    else:
        assert outcome.report.sdp_bytes > 0, outcome.describe()
        assert outcome.report.count("demotions", "test-flip") > 0, outcome.describe()
    return outcome


WAYS = ["level", "edge", "once"]
FLOWS = [
    *(f"flow {way} none" for way in WAYS),
    # With ONESHOT a change of the registration is its enabling, and belongs to the thread that has the event.
    *(f"flow {way} {race}" for way in ["level", "edge"] for race in ["modify", "remove"]),
]


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("way", WAYS)
def test_threads_share_a_burst(way, env):
    """As many messages as threads sleep on one set: none of them sleeps on."""
    seen = same("sets.c", f"burst {way}", env).seen
    assert seen["slept"] == 0 and seen["empty"] == 0, seen


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("case", FLOWS)
def test_threads_answer(case, env):
    """Every message is answered once, whatever another thread does to the set."""
    seen = same("sets.c", case, env).seen
    assert seen["slept"] == seen["twice"] == seen["empty"] == 0, seen


@pytest.mark.parametrize("way", WAYS)
def test_threads_answer_while_others_are_closed(way):
    """What the remaining connections say is answered once."""
    seen = same("sets.c", f"flow {way} close").seen
    assert seen["slept"] == seen["twice"] == seen["empty"] == 0, seen


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("how", ["modify", "remove"])
def test_nothing_comes_under_data_that_a_connection_had(how, env):
    """Who has the event of a connection may free what its data named: no other thread is given that."""
    seen = same("sets.c", f"renames {how}", env).seen
    assert seen["stale"] == seen["twice"] == seen["slept"] == seen["empty"] == 0, seen


@pytest.mark.parametrize("what", ["young", "heirs"])
def test_others_have_the_data_of_a_connection(what):
    """Beside it where no lane is, or after it: a thread that sleeps all the time is told of each."""
    plain, seen, outcome = play("sets.c", f"alike {what}")
    assert seen == plain and seen["slept"] == 0, outcome.describe()
    assert outcome.report.count("connections", "sdp") == {"young": 0, "heirs": 12}[what], outcome.describe()


def test_a_number_of_the_librarys_is_used_by_the_program():
    """What was there is in the set once, by another number, and goes on waking who waits."""
    plain, seen, outcome = play("sets.c", "overwritten")
    assert (plain.pop("overwritten"), seen.pop("overwritten")) == (0, 1), outcome.describe()
    assert seen == plain, outcome.describe()
    assert_lanes(outcome)


@pytest.mark.parametrize("most", [1, 3])
def test_ready_connections_take_turns(most):
    """Level-triggered connections that nobody reads come as over TCP, one after the other, but for turns of the kernel's."""
    plain, seen, outcome = play("sets.c", f"rotation {most} level alone", EAGER)
    assert seen["longest"] <= plain["longest"] + 1, outcome.describe()
    assert_lanes(outcome)


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("most", [1, 8])
@pytest.mark.parametrize("way", ["edge", "once"])
def test_each_is_named(way, most, env):
    """Connections and a pipe, each with one message: each is named, and with ONESHOT once."""
    same("sets.c", f"rotation {most} {way} pipe", env)


BESIDE = [f"beside {most} {way}" for most in (1, 2, 8) for way in ("level", "edge")]


@pytest.mark.parametrize(
    "case, env",
    [
        # With room for more than what is ready on lanes.
        *((f"rotation {most} level pipe", EAGER) for most in (5, 8)),
        *((case, env) for case in BESIDE for env in (EAGER, FLIPS)),
    ],
)
def test_others_come_beside_connections_that_always_have_more(case, env):
    """A timer, a pipe, a listener: each within a few calls."""
    plain, seen, outcome = play("sets.c", case, env)
    assert plain.pop("longest") <= 2, plain
    assert seen.pop("longest") <= MOST_CALLS, outcome.describe()
    assert seen == plain, outcome.describe()
    if env is EAGER:
        assert_lanes(outcome)
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("case", ["late level", "late edge", "twice level", "twice edge"])
def test_exclusive_on_a_lane(case, env):
    """The events are right before and after the connection leaves its lane for it."""
    plain, seen, outcome = play("sets.c", f"exclusive {case}", env)
    assert seen == plain, f"differs from plain TCP: {plain}\n{outcome.describe()}"
    assert outcome.report.count("demotions", "unsuitable-socket") > 0, outcome.describe()
    # It was on its lane when it was told.
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()
    assert seen.get("slept", 0) == 0, seen


@pytest.mark.parametrize("case", ["refused", "listeners"])
def test_exclusive_that_costs_no_lane(case):
    """What the kernel refuses, and what is asked for a listener."""
    outcome = same("sets.c", f"exclusive {case} level")
    assert outcome.report.count("demotions", "unsuitable-socket") == 0, outcome.describe()


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize(
    "bits, ends",
    [
        ("in+rdhup", ["w 0", "w 2", "c 0", "c 2", "z 0"]),
        ("rdhup", ["w 0", "w 2", "c 0", "c 2"]),
        ("rdhup+once", ["w 0", "w 2", "c 2"]),
        ("in+rdhup+edge", ["w 0", "w 2", "c 0", "c 2", "z 0"]),
        ("rdhup+edge", ["w 0", "w 2", "c 2"]),
        ("in+out+rdhup", ["w 2", "c 0"]),
        ("in+out+rdhup+edge", ["w 2"]),
    ],
)
def test_the_peers_end(bits, ends, env):
    """EPOLLRDHUP, EPOLLHUP and EPOLLERR after its shutdown, close or reset, with messages unread and without.

    The bits of a few waits together: on a lane "readable" may come first.
    """
    for end in ends:
        same("sets.c", f"hangup {bits} {end}", env)


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("call", ["ppoll", "pselect", "epoll_pwait", "epoll_pwait2", "syscall"])
def test_masks_and_times(call, env):
    """A signal that the mask allows interrupts, one that it blocks waits; nanoseconds pass, and nothing is invented."""
    seen = same("masks.c", call, env).seen
    # Each round of it like the first.
    assert seen["same"] == 1, seen


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("way", ["level", "edge", "once"])
@pytest.mark.parametrize("when", ["turns", "together"])
def test_a_process_and_its_child_share_a_set(when, way, env):
    """Nobody sleeps while a message waits for the two; a connection that both use goes on on TCP."""
    plain, seen, outcome = play("shared_set.c", f"{when} {way} own", env)
    # If both wait all the time, one of them may be always the first.
    assert plain.pop("child") in (0, 1) and (seen["child"] or when == "together"), seen
    is_used_by_child = seen.pop("child")
    assert seen == plain, f"differs from plain TCP: {plain}\n{outcome.describe()}"
    assert seen["missing"] == seen["twice"] == seen["slept"] == seen["others"] == 0, seen
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()
    # Who waits beside the other may have taken an event and lost the message to it.
    has_waited = when == "together" and outcome.report.count("demotions", "shared") > 0
    if env is EAGER and not is_used_by_child and not has_waited:
        assert outcome.report.count("demotions", "shared") == 0, outcome.describe()
        received = outcome.report.count("bytes", "sdp_received")
        assert received - WARM_BYTES >= LEAST * seen["payload"], outcome.describe()
    elif env is EAGER:
        # By which of the halves is a matter of who was first.
        assert outcome.report.count("demotions", "shared") > 0, outcome.describe()


@pytest.mark.parametrize("env", [EAGER, FLIPS], ids=["kept", "flipped"])
@pytest.mark.parametrize("when", ["turns", "together"])
def test_either_enables_anew(when, env):
    """EPOLLONESHOT in a shared set, enabled by whoever: every message comes, and nobody sleeps beside one."""
    plain, seen, outcome = play("shared_set.c", f"{when} once either", env)
    for word in ("missing", "slept", "tokens", "payload"):
        assert seen[word] == plain[word], outcome.describe()
    # If both wait all the time, one of them may be always the first; then only that one uses it.
    is_shared = seen["child"] != 0 or when == "turns"
    if env is EAGER and is_shared:
        assert outcome.report.count("demotions", "shared") > 0, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("way", ["outer", "outer-edge", "outer-once", "poll", "select"])
def test_a_set_that_is_waited_for_itself(way, env):
    """It is readable as long as something in it is, also for a program that receives without a wait on it."""
    argv = [sys.executable, PROGRAMS / "nested.py", way]
    plain = run(argv, sdp=False, limit_s=LIMIT_S)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, env=env, limit_s=LIMIT_S)
    assert outcome.code == 0, outcome.describe()
    behind = 0 if way.startswith("outer-") else 300
    assert plain.seen == {"readable": 300, "silent": 300, "behind": behind, "vain": 300}, plain.describe()
    # A peer that loses its CPU between a wake byte and its count leaves the set readable for so long.
    assert outcome.seen | {"silent": 300} == plain.seen and outcome.seen["silent"] >= 270, outcome.describe()
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()
    assert outcome.report.sdp_bytes > 20_000, outcome.describe()
