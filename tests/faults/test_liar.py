"""Nobody gets a connection by claiming it: what the board says is believed of who holds the other end, nobody else."""

import pytest

from .harness import EAGER, scenario

pytestmark = pytest.mark.integrity

# What the liar tells where a number of a descriptor of the connection's other end belongs: a socket of another connection that is
# over, or not; a number at which nothing is, or nothing can be.
LIES = ["kept", "own", "free", "huge"]


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("role", ["offers", "accepts"])
def test_liar(role, kind):
    outcome = scenario("liar", role, kind, env=EAGER, limit_s=60)
    # The offer was taken by the liar, or not by the victim; either way the victim gives the segment up.
    claim = "taken" if role == "offers" else "offered"
    wanted = {"fine": True, "attached": 0, "gone": 1, "claim": claim, "stolen": False}
    assert outcome.seen == wanted, outcome.describe()
    assert outcome.report.seen == 2 and outcome.report.sdp_bytes == 0, outcome.describe()


@pytest.mark.parametrize("role", ["offers", "accepts"])
def test_truth(role):
    """The same words of an end that is the liar's own."""
    outcome = scenario("liar", role, "right", env=EAGER, limit_s=60)
    claim = "confirmed" if role == "offers" else "taken"
    wanted = {"fine": True, "attached": 1, "gone": 0, "claim": claim, "stolen": False}
    assert outcome.seen == wanted, outcome.describe()
