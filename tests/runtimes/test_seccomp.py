"""Programs that confine themselves to exactly the system calls that they make: none of ours may follow."""

import ctypes.util

import pytest

from support import Placement
from support.report import assert_flipped, check_sums
from support.stage import python

from .cache import HERE, WAYS, compiled, compiled_ways

STYLES = ["blocking", "plain", "vectors", "messages", "poll", "select", "epoll", "signals", "fork"]
# Before its first socket, with a new connection, on a lane, on a lane with much under way.
TIMES = ["start", "young", "late", "bulk"]
ON_A_LANE = ("late", "bulk")
INSTALLERS = ["seccomp", "tsync", "libseccomp"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The confined server and a client."""
    place = tmp_path_factory.mktemp("filters")
    return {
        "server": compiled(place, "filters", [WAYS / "filters.c"], "-ldl"),
        "client": compiled_ways(place, "ways", "-ldl"),
    }


def confined(programs, when, how, style):
    """What the client saw and how the server ended."""

    def scenario(stage):
        port = stage.port()
        server = stage.server("server", [programs["server"], port, when, how, style], port=port)
        text = stage.client("client", [programs["client"], "client", "libc", port]).text
        code = server.wait(60)
        stage.stop(server)
        return text, code

    return scenario


def verify(ladder, programs, placement, when, how, style):
    """The same as without the library; a lane as long as that was allowed, and the reason."""
    name = f"seccomp-{when}-{how}-{style}"
    scenario = confined(programs, when, how, style)
    plain = ladder.plain(name, scenario)
    assert plain[1] == 0, plain
    result, stage = ladder.play(name, scenario, placement)
    assert result == plain
    report, client = stage.server_reports[0], stage.client_reports[0]
    if when in ON_A_LANE:
        assert report.count("demotions", "sandbox") == 2, report.describe()
        assert client.count("demotions", "peer-switched") > 0, client.describe()
        assert report.sdp_bytes > 0 and client.sdp_bytes > 0, report.describe()
    else:
        assert report.sdp_bytes == client.sdp_bytes == 0, client.describe()
        # What comes after the filter is not looked at any more, not even counted.
        assert report.count("reasons", "sandbox") == (0 if when == "start" else 1), report.describe()
        assert client.count("reasons", "peer-not-listening") == 1, client.describe()


@pytest.mark.parametrize("when", TIMES)
@pytest.mark.parametrize("style", STYLES)
def test_strict_filter(ladder, programs, style, when):
    """Any further system call would end the server."""
    verify(ladder, programs, Placement.BOTH, when, "prctl", style)


@pytest.mark.parametrize("how", INSTALLERS)
def test_installers(ladder, programs, how):
    """Other ways to install a filter."""
    if how == "libseccomp" and not ctypes.util.find_library("seccomp"):
        pytest.skip("not installed: libseccomp2")
    verify(ladder, programs, Placement.BOTH, "bulk", how, "poll")


@pytest.mark.parametrize("when", ON_A_LANE)
@pytest.mark.parametrize("style", ["blocking", "vectors", "poll", "epoll", "signals"])
def test_strict_filter_beside_flips(ladder, programs, style, when):
    """Lanes change at random calls before the filter, and the client's go on doing so."""
    name = f"seccomp-{when}-prctl-{style}"
    scenario = confined(programs, when, "prctl", style)
    plain = ladder.plain(name, scenario)
    result, stage = ladder.play(name, scenario, Placement.FLIP)
    assert result == plain
    for report in stage.server_reports + stage.client_reports:
        check_sums(report)
        assert_flipped(report)


# One system call that an inherited filter refuses, and whether a lane can do without; None: it depends on
# which of the ends comes to meet the other first.
REFUSED = {
    "eventfd2": True,
    "pidfd_open": True,
    "pidfd_getfd": True,
    "epoll_pwait": True,
    "sched_getaffinity": True,
    "memfd_create": None,
    "other_sockets": False,
    "prlimit64": None,
    "getsockopt": False,
    "sendmsg": False,
    "recvmsg": False,
}


@pytest.mark.parametrize("role", ["server", "client"])
@pytest.mark.parametrize("call", REFUSED)
def test_inherited_filter(ladder, programs, call, role):
    """A filter from before the program began, as containers have: what it refuses is done without."""

    def command(end, port):
        confine = [python(), HERE / "programs" / "refuse.py", call] if end == role else []
        return [*confine, programs["client"], end, "libc", port]

    def scenario(stage):
        port = stage.port()
        server = stage.server("server", command("server", port), port=port)
        text = stage.client("client", command("client", port)).text
        stage.stop(server)
        return text

    name = f"seccomp-inherited-{call}-{role}"
    plain = ladder.plain(name, scenario)
    result, stage = ladder.play(name, scenario, Placement.BOTH)
    assert result == plain
    for report in stage.server_reports + stage.client_reports:
        check_sums(report)
        if REFUSED[call] is not None:
            assert (report.sdp_bytes > 0) == REFUSED[call], report.describe()
