"""A socket that is destroyed from outside while its process lives: aborted here, reset there, never an orderly end."""

import pytest

from .harness import EAGER, FLIPS, both

CALLS = ["rrw", "wrw", "pr", "er", "sw", "wwr"]
STATES = [(state, calls) for state in ("quiet", "unread", "gone") for calls in CALLS]
# What sleeps until the end comes.
STATES += [("asleep", calls) for calls in ("rrw", "pr")]


@pytest.mark.parametrize("env", [{}, EAGER, FLIPS], ids=["earned", "eager", "flips"])
@pytest.mark.parametrize("victim", ["here", "there"])
@pytest.mark.parametrize(("state", "calls"), STATES)
def test_told(state, calls, victim, env):
    both("destroyed", "told", victim, calls, calls, state, env=env)
