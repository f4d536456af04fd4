"""Between users a connection costs no more system calls than between equals; times decide nothing."""

import os

import pytest

from .harness import EAGER, scenario

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can have ends of two users")

USERS = {"one user": ("nobody", "nobody"), "two users": ("www-data", "nobody"), "root and a user": ("root", "nobody")}
# How a processor is shared changes who sleeps and how often somebody looks: a call for each message or step would be far more.
MESSAGES, SHARE = 40_000, 1.25


def calls(load, users, **env):
    """System calls of both ends, whose payload went over SDP."""
    outcome = scenario("cost", load, *users, public=True, env={**EAGER, **env}, limit_s=90)
    assert outcome.report.count("connections", "sdp") >= 0.9 * outcome.report.seen > 0, outcome.describe()
    if load == "stream":
        assert outcome.report.share("sent") > 0.95, outcome.describe()
    return sum(outcome.seen["calls"])


def test_a_stream_of_small_messages():
    """No call for each message, while both ends are awake, whoever they belong to."""
    found = {who: calls("stream", users) for who, users in USERS.items()}
    assert max(found.values()) < found["one user"] + MESSAGES / 8, found


def test_a_meeting_by_name():
    """A meeting between users is not dearer than one between equals, where nothing is kept of earlier ones."""
    found = {who: calls("meetings", users, SDP_KEEP_SEGMENTS="0") for who, users in USERS.items()}
    assert max(found.values()) < found["one user"] * SHARE, found
