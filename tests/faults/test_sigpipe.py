"""EPIPE comes with the kernel's signal, and with not one byte."""

import pytest

from .harness import EAGER, compiled, run

HOWS = ["handled", "blocked", "ignored", "jump", "nosignal", "filtered"]
ENVS = pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])


@ENVS
@pytest.mark.parametrize("end", ["ours", "theirs", "reset"])
@pytest.mark.parametrize("how", HOWS)
def test_signal(how, end, env):
    argv = [compiled("sigpipe.c"), how, end]
    plain = run(argv, sdp=False)
    outcome = run(argv, env=env)
    assert plain.code == outcome.code == 0, f"{plain.describe()}\n{outcome.describe()}"
    assert outcome.seen == plain.seen, f"{plain.seen}\n{outcome.describe()}"
    if how != "filtered":  # such an image has no report of its own
        assert outcome.report.sdp_bytes > 0, outcome.describe()


@ENVS
@pytest.mark.parametrize("held", [0, 1])
def test_beside_a_shutdown(held, env):
    """A writer between the end on the lane and the end in the kernel: what it was told is what was sent."""
    outcome = run([compiled("sigpipe.c"), "race", held], env=env)
    seen = outcome.seen
    assert outcome.code == 0 and outcome.report.sdp_bytes > 0, outcome.describe()
    assert seen["got"] == seen["sent"] and seen["odd"] == 0, outcome.describe()
    assert (seen["signals"], seen["details"]) == (1, [13, 0, 1, 1, 1]), outcome.describe()
