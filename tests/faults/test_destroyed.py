"""A socket that is destroyed from outside while its process lives: aborted here, reset there, never an orderly end."""

import pytest

from .harness import EAGER, FLIPS, both, scenario

CALLS = ["rrw", "wrw", "pr", "er", "sw", "wwr"]
STATES = [(state, calls) for state in ("quiet", "unread", "gone") for calls in CALLS]
# What sleeps until the end comes.
STATES += [("asleep", calls) for calls in ("rrw", "pr")]


@pytest.mark.parametrize("env", [{}, EAGER, FLIPS], ids=["earned", "eager", "flips"])
@pytest.mark.parametrize("victim", ["here", "there"])
@pytest.mark.parametrize(("state", "calls"), STATES)
def test_told(state, calls, victim, env):
    both("destroyed", "told", victim, calls, calls, state, env=env)


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("how", ["kill", "exec", "close", "destroy"])
def test_with_a_bell(how, env):
    """The same reset of the kernel's, which an unread wake-up byte made of an end, or which is one."""
    plain = scenario("destroyed", "with_a_bell", how, sdp=False).seen
    outcome = scenario("destroyed", "with_a_bell", how, env=env)
    assert plain["told"] == (["ECONNRESET", 0] if how == "destroy" else [0, 0]), plain
    assert outcome.seen["told"] == plain["told"], f"{plain}\n{outcome.describe()}"
    assert plain["bells"] == 0 and outcome.seen["bells"] == 1, outcome.describe()
