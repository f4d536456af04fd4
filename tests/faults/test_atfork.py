"""Handlers of `pthread_atfork` use the connection: over the library as over TCP, in the child and in the parent."""

import pytest

from .harness import EAGER, compiled, run

IN_CHILD = ["close", "over", "range"]
ANYWHERE = ["dup", "shut", "wend", "send", "poll", "set", "fork"]
CASES = [("child", what) for what in IN_CHILD + ANYWHERE]
CASES += [(handler, what) for handler in ("prepare", "parent") for what in ANYWHERE]


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("child", ["exit", "exec"])
@pytest.mark.parametrize(("handler", "what"), CASES)
def test_handlers(handler, what, child, env):
    """What a handler does in the child is done to the child's copy; forks of handlers are forks."""
    argv = [compiled("atfork.c"), handler, what, child]
    plain = run(argv, sdp=False)
    outcome = run(argv, env=env)
    assert plain.code == outcome.code == 0, f"{plain.describe()}\n{outcome.describe()}"
    assert outcome.seen == plain.seen, f"{plain.seen}\n{outcome.describe()}"
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("how", ["fork", "pty"])
def test_a_handler_waits_for_who_uses_the_connection(how, env):
    """Nothing that a fork locks here is held while the program's handlers wait for its own locks."""
    argv = [compiled("atfork_lock.c"), how]
    plain = run(argv, sdp=False)
    outcome = run(argv, env=env)
    assert plain.code == outcome.code == 0, f"{plain.describe()}\n{outcome.describe()}"
    assert outcome.seen == plain.seen, f"{plain.seen}\n{outcome.describe()}"
    assert outcome.report.sdp_bytes > 0, outcome.describe()
