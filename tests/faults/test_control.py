"""Messages beside plain payload in a ring: each is answered, obeyed or ignored as docs/spec/sdp.md says, and only a broken rule resets."""

import pytest

from .harness import EAGER, scenario

pytestmark = pytest.mark.integrity

SEND_SM, SRC_CANCEL, RESIZE, RESIZE_ACK, MODE, EXPERIMENTAL, DATA = 4, 8, 11, 12, 7, 0x7F, 0xFF
WANTED = {
    # One SendSm for each, which acknowledges the advertisement and carries nothing.
    "advert": [[[[SEND_SM, 0, 0]], True]] * 3,
    "behind_the_carrier": [True, [SEND_SM, 0, 0], True],
    "cancelled": [[SEND_SM, DATA], True, False],
    "requests": [
        [RESIZE, [RESIZE_ACK, 0, 0], True],
        *[[mid, [], True] for mid in (SEND_SM, SRC_CANCEL, EXPERIMENTAL, MODE, DATA)],
    ],
    "suspended": [True, True, False],
}


@pytest.mark.parametrize("name", WANTED)
def test_control(name):
    outcome = scenario("control", "against", name, env=EAGER, limit_s=60)
    assert outcome.seen == {"seen": WANTED[name], "end": True, "told": "end"}, outcome.describe()
    assert "protocol-violation" not in outcome.report.raw["reasons"], outcome.describe()


@pytest.mark.parametrize("name", ["second", "beside", "bare", "unasked", "mode", "abort"])
def test_broken(name):
    outcome = scenario("control", "against", name, env=EAGER, limit_s=60)
    assert outcome.seen == {"seen": True, "end": True, "told": "reset"}, outcome.describe()
    assert "protocol-violation" in outcome.report.raw["reasons"] | outcome.report.raw["demotions"], outcome.describe()
