"""What a fork child of a server costs is counted in page faults; times decide nothing."""

from .harness import compiled, run

CHILDREN = 60
# The library's code, the page that it writes, the family's and the counters', and as many for another kernel.
ALLOWED = 9
# What the loader looks up at a first call would be counted too.
AT_ONCE = {"LD_BIND_NOW": "1"}


def fewest(sdp):
    """Faults of a child that answers one message and ends."""
    outcome = run([compiled("forked.c"), CHILDREN], sdp=sdp, env=AT_ONCE)
    assert outcome.code == 0, outcome.describe()
    if sdp:
        assert outcome.report.seen == 2 * CHILDREN, outcome.describe()
        assert outcome.report.count("reasons", "too-young") == 2 * CHILDREN, outcome.describe()
    return outcome.seen["faults"]


def test_a_child_for_one_message_meets_few_pages():
    """What the library writes in a fork child is on one page, what it reads and runs lies together."""
    without, with_library = fewest(False), fewest(True)
    assert with_library <= without + ALLOWED, (without, with_library)
