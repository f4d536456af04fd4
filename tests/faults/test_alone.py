"""Nobody stays attached alone: meetings whose other end is late, or gives up when it has been told yes."""

import pytest

from .harness import EAGER, scenario

# What an end says of its sleepers: whether all of them have armed (docs/spec/lanes.md, O10). Not of a connection that
# was the kernel's for a while.
TRUSTS, ARMS = 1, 2
WANTED = {
    "disowned": {"alone": True, "offers": False, "again": True, "attached": True},
    "unmet": {"seen": [True, True, True], "attached": True, "says": TRUSTS},
    "late_yes": {"attached": True, "says": ARMS},
    "late_no": {"gone": True, "refused": "EPIPE", "alone": False, "attached": True},
}


@pytest.mark.parametrize("name", WANTED)
def test_alone(name):
    outcome = scenario("alone", "against", name, env=EAGER, limit_s=60)
    assert outcome.seen == {**WANTED[name], "end": True, "told": "end"}, outcome.describe()


def test_cut_off():
    """A reset is told although the look for a bell that was counted, and lost with it, has taken the kernel's word."""
    outcome = scenario("alone", "against", "cut_off", env=EAGER, limit_s=60)
    assert outcome.seen == {"read": True, "end": True, "told": "reset"}, outcome.describe()
