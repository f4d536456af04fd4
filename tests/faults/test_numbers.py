"""Numbers that mean one thing to one thread and another to the next: descriptor tables of one's own, on shared memory."""

import pytest

from .harness import EAGER, compiled, run

# The program pings over TCP before it has earned its lanes.
MODES = {"default": {}, "eager": EAGER}
# What a child on its parent's memory does to the connection's number, and whether the connection stays on its lanes.
CHILDREN = {
    "write": True,
    "read": True,
    "close": True,
    "other": True,
    "file": True,
    "use": False,
    "wait": False,
    "listen": True,
    "pass": True,
    "fork": True,
    "signal": True,
    "busy": True,
}
# Whether the process has to leave its lanes because one table cannot tell any more.
APART = {
    "apart": True,
    "keep": True,
    "beside-recv": True,
    "beside-epoll": True,
    "unread": True,
    "unread-gone": True,
    "close-range": True,
    "close-range-child": False,
    "clone-vm": True,
    "clone-files": True,
    "clone-both": True,
    "clone-waiting": False,
    "clone-both-waiting": False,
    "clone-none": False,
    "fork": False,
}


@pytest.fixture(scope="module")
def numbers():
    return compiled("numbers.c")


def compared(argv, env):
    """What the program saw over TCP and with the library; bytes went over SDP."""
    plain = run(argv, sdp=False)
    outcome = run(argv, env=env)
    assert plain.code == outcome.code == 0, f"{plain.describe()}\n{outcome.describe()}"
    assert outcome.seen == plain.seen, f"plain: {plain.seen}\n{outcome.describe()}"
    assert outcome.report.sdp_bytes > 10_000, outcome.describe()
    return outcome


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["vfork", "clone"])
@pytest.mark.parametrize("case", CHILDREN)
def test_child_on_its_parents_memory(numbers, case, how, mode):
    """What such a child makes of a number is nothing to its parent, and the parent's bytes are nothing to it."""
    outcome = compared([numbers, f"child-{case}", how], MODES[mode])
    left = outcome.report.count("demotions", "shared")
    if CHILDREN[case]:
        assert left == 0, outcome.describe()
        assert outcome.report.count("bytes", "sdp_sent") > 80_000, outcome.describe()
    else:
        assert left > 0, outcome.describe()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["call", "raw"])
@pytest.mark.parametrize("case", APART)
def test_descriptors_of_ones_own(numbers, case, how, mode):
    """Who gets descriptors of his own, by whatever call, finds his bytes there, and everybody else theirs."""
    outcome = compared([numbers, case, how], MODES[mode])
    left = outcome.report.count("demotions", "shared")
    assert (left > 0) == APART[case], outcome.describe()
