"""What quiet connections keep: pages are counted, times decide nothing."""

import resource

import pytest

from .harness import scenario

PAGE_KIB = 4
# The control page and the first page of each ring.
SMALL_PAGES = 3


def quiet(count, bulky, how, patience_s=20, **env):
    env = {f"SDP_{key}": value for key, value in env.items()}
    return scenario("idle", "memory", count, bulky, how, patience_s, env=env, limit_s=60)


def test_small_messages_touch_three_pages():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(400, hard - 400)
    outcome = quiet(count, 0, "poll")
    seen = outcome.seen
    assert seen["child"] == 0, outcome.describe()
    # Each segment is mapped at both ends; nearly all connections earn one.
    segments = seen["segments"] / 2
    assert segments >= 0.9 * count, outcome.describe()
    assert seen["small_kib"] <= segments * SMALL_PAGES * PAGE_KIB, outcome.describe()


@pytest.mark.parametrize("how", ["recv", "poll", "epoll"])
def test_bulk_is_given_back(how):
    """Both ends wait as told; both rings shrink to what small traffic needs, and go on working."""
    outcome = quiet(8, 6, how, GIVE_BACK="1")
    seen = outcome.seen
    assert seen["child"] == 0, outcome.describe()
    assert outcome.report.sdp_bytes > 10 << 20, outcome.describe()
    assert seen["bulk_kib"] > seen["small_kib"] + 6 * 100, outcome.describe()
    # The page on which each ring stood still may stay.
    assert seen["silent_kib"] <= seen["small_kib"] + 6 * 2 * PAGE_KIB, outcome.describe()


def test_never_is_never():
    outcome = quiet(2, 2, "poll", 2, GIVE_BACK="0")
    seen = outcome.seen
    assert seen["child"] == 0, outcome.describe()
    assert seen["silent_kib"] == seen["bulk_kib"], outcome.describe()
