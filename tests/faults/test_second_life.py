"""Lanes that a connection earns after it came to a process by exec, SCM_RIGHTS or activation."""

import shutil

import pytest

from .harness import both, scenario

# Of the payload of the scenarios, in percent: each life begins with a few dozen calls on TCP.
MOST = 80


def share(report):
    """Percent of all counted payload that went over SDP."""
    return 100 * report.sdp_bytes / (report.sdp_bytes + report.tcp_bytes)


def assert_counted_once(outcome, *, sdp):
    """One connection has two ends, however many processes and images used them."""
    counted = outcome.report.raw["connections"]
    assert counted == {"seen": 2, "sdp": sdp, "tcp": 2 - sdp}, outcome.describe()
    assert all(n > 0 for n in outcome.report.raw["reasons"].values()), outcome.describe()
    assert sum(outcome.report.raw["reasons"].values()) == 2 - sdp, outcome.describe()


@pytest.mark.parametrize("number", [0, 3, 7])
def test_executed(number):
    outcome = both("second", "executed", number)
    assert share(outcome.report) > MOST, outcome.describe()
    assert_counted_once(outcome, sdp=2)


def test_executed_with_two_numbers():
    outcome = both("second", "aliased", 5, 9)
    assert share(outcome.report) > MOST, outcome.describe()
    assert_counted_once(outcome, sdp=2)


@pytest.mark.parametrize("numbers", [(0, 9), (9, 1), (9, 200)], ids=str)
def test_executed_with_a_number_that_is_used_without_us(numbers):
    """A standard descriptor, or one beyond those that are looked at: every byte by the kernel lane."""
    outcome = scenario("second", "aliased", *numbers)
    assert outcome.seen == scenario("second", "aliased", *numbers, sdp=False).seen
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert_counted_once(outcome, sdp=0)


def test_activated_by_a_process_without_the_library():
    outcome = both("second", "activated")
    assert share(outcome.report) > MOST, outcome.describe()
    assert_counted_once(outcome, sdp=2)


needs_activator = pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="needs systemd-socket-activate"
)


@needs_activator
@pytest.mark.parametrize("mode", ["listener", "accept"])
def test_activated_by_systemd(mode):
    """The service gets its listener, or a process of its own for each connection."""
    outcome = both("second", "activated_by_systemd", mode)
    assert share(outcome.report) > MOST, outcome.describe()
    # Two clients, one after another.
    counted = outcome.report.raw["connections"]
    assert counted == {"seen": 4, "sdp": 4, "tcp": 0}, outcome.describe()


@needs_activator
def test_activated_on_the_standard_descriptors():
    """As by inetd: these stay on TCP."""
    outcome = scenario("second", "activated_by_systemd", "inetd")
    assert outcome.seen == scenario("second", "activated_by_systemd", "inetd", sdp=False).seen
    assert outcome.seen["askers"] == [0, 0], outcome.describe()
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.count("reasons", "standard-descriptor") == 2, outcome.describe()


def test_executed_on_a_lane():
    outcome = both("second", "executed_late")
    assert outcome.report.count("demotions", "exec") > 0, outcome.describe()
    assert outcome.report.raw["switches"]["promoted"] >= 6, outcome.describe()
    assert share(outcome.report) > MOST, outcome.describe()
    assert_counted_once(outcome, sdp=2)


def test_relayed():
    outcome = both("second", "relayed")
    assert outcome.report.count("demotions", "passed") >= 4, outcome.describe()
    assert share(outcome.report) > MOST / 2, outcome.describe()
    assert_counted_once(outcome, sdp=2)


def test_a_connection_that_the_parent_keeps_stays_on_tcp():
    outcome = scenario("second", "kept_by_the_parent")
    assert outcome.seen == {"asker": 0, "server": 0}, outcome.describe()
    assert outcome.seen == scenario("second", "kept_by_the_parent", sdp=False).seen
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert_counted_once(outcome, sdp=0)
