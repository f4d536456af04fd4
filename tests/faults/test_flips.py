"""What other files show of lanes that are kept, with lanes that change at random calls: the same as over TCP.

Shares and reasons are those files' to hold. Here only what the program saw counts, and that lanes changed under it.
What needs lanes in a state of its choosing, or is over before there are any, is not played.
"""

import functools
import itertools
import warnings

import pytest

from . import test_calls, test_options, test_threads
from .harness import FLIPS, compiled, flipped, run, scenario
from .test_ending import UNREAD

LIMIT_S = 60


def compared(play, env):
    """Over TCP and with flips. TCP itself is late at times on a machine with much to do: where the two differ it is asked twice
    more, and must do both times what was seen with flips."""
    plain, outcome = play(sdp=False), play(env=env)
    if plain.code == outcome.code == 0 and plain.seen != outcome.seen:
        warnings.warn(f"over TCP: {plain.describe()}\nwith flips: {outcome.describe()}", stacklevel=3)
        plain = play(sdp=False)
        if plain.code == 0 and plain.seen == outcome.seen:
            plain = play(sdp=False)
    return flipped(outcome, plain)


def played(module, name, *words, env=None, **options):
    """A scenario, over TCP and with flips."""
    play = functools.partial(scenario, module, name, *words, limit_s=LIMIT_S, **options)
    return compared(play, {**FLIPS, **(env or {})})


def played_in_c(program, case):
    """A case of a program in C, likewise."""
    return compared(functools.partial(run, [compiled(program), *case.split()], limit_s=LIMIT_S), FLIPS)


@pytest.mark.parametrize("case", test_options.CASES)
def test_options_and_flags(case):
    played("options", *case.split())


TRAPS = ["closefrom_in_a_child", "unseen_close", "rewritten_environment", "one_cpu", "edge_of_room", "nested_epoll"]
TRAPS += [f"room_for_two {first} {second}" for first, second in itertools.pairwise(["level", "edge", "poll", "level"])]
TRAPS += ["young_beside_a_lane first", "young_beside_a_lane last"]


@pytest.mark.parametrize("case", TRAPS)
def test_traps(case):
    played("traps", *case.split())


@pytest.mark.parametrize("case", test_calls.CASES)
def test_calls_in_c(case):
    played_in_c("calls.c", case)


# What a peer that is killed leaves may have another word than over TCP: test_ending.py says why.
ENDINGS = [f"{unread} {how} {calls}" for unread in UNREAD for how in ("exit", "close") for calls in ("recv", "write")]
ENDINGS += [f"{unread} kill recv" for unread in UNREAD]
ENDINGS += ["spaced_writes exit", "spaced_writes close"]
ENDINGS += [f"while_asleep exit {call}" for call in ("recv", "send", "poll", "epoll", "epoll-et")]
ENDINGS += ["while_asleep kill recv", "while_asleep kill send"]
ENDINGS += [f"killed_under_load {seed}" for seed in range(3)]
ENDINGS += [f"stopped_under_load {seed}" for seed in range(3)]
ENDINGS += [f"dead_with_a_full_ring {how} busy" for how in ("before level", "after edge")]
ENDINGS += ["reset_during_a_send warm 2000000", "stopped_peer_is_left_alone", "exit_with_bells"]


@pytest.mark.parametrize("case", ENDINGS)
def test_endings(case):
    played("ending", *case.split())


@pytest.mark.parametrize("case", [*test_threads.CLOSED, *test_threads.WAITING, *test_threads.SHUT, "storm"])
def test_threads_of_one_connection(case):
    played_in_c("threads.c", case)


@pytest.mark.parametrize("case", test_threads.HANDLERS)
def test_handlers(case):
    played_in_c("handlers.c", case)


# Programs that send little at a time wait for delayed acknowledgements after many flips: of those only a few.
OTHERS = ["second executed 3", "second executed_late"]
OTHERS += ["limits memory_comes_back client", "limits memory_comes_back server"]
OTHERS += ["polling room 512", "spinning fork_beside_a_spinner 300"]
OTHERS += [f"early woken {way}" for way in ("recv", "poll", "select", "level", "nested")]


@pytest.mark.parametrize("case", OTHERS)
def test_others(case):
    played(*case.split())
