"""Fork children count in their parent's statistics page at first: what the report says, and who keeps what mapped."""

import os

import pytest

from .harness import scenario


def test_counted_exactly():
    """Whoever counts where: killed, executed in vain, with a page of its own in the end, children of children."""
    outcome = scenario("guests", "counted")
    seen, report = outcome.seen, outcome.report
    assert seen["codes"] == [0, 9, 9, 0, 0, 0], outcome.describe()
    for way in ("sent", "received"):
        counted = report.count("bytes", f"sdp_{way}") + report.count("bytes", f"tcp_{way}")
        assert counted == seen["moved"], outcome.describe()
    assert report.seen == 2 * seen["connections"], outcome.describe()
    assert report.raw["processes"] == seen["processes"], outcome.describe()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root directory")
@pytest.mark.parametrize("how", ["rich", "poor"])
def test_a_guest_leaves(how):
    """Before a change of privilege it gives its parent's page up, also where it cannot have one of its own."""
    outcome = scenario("guests", "leaves", how)
    assert outcome.seen == {
        "has_page": True,
        "was_guest": True,
        "mapped": [],
        "opened": [],
        "code": 0,
        "fine": True,
    }, outcome.describe()
    assert outcome.report.raw["processes"] == 2, outcome.describe()


def test_a_number_is_not_the_page_s_any_more():
    """A child that gets its own page closes its parent's, not what it has itself under that number."""
    outcome = scenario("guests", "replaced")
    assert outcome.seen == {"code": 0}, outcome.describe()
