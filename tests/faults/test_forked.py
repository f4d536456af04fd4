"""What a fork child of a server costs is counted in page faults; times decide nothing."""

from .harness import compiled, run

CHILDREN = 60
# Where things are mapped is random: the library's code may lie in two of the pieces that the kernel maps at a time.
RUNS = 3
# The library's code, the page that it writes, the family's and the counters', and one for another kernel.
CHILD = 5
# The page that it writes, the words of the thread, and one for another kernel.
PARENT = 3
# What the loader looks up at a first call would be counted too.
AT_ONCE = {"LD_BIND_NOW": "1"}


def fewest(sdp):
    """Faults of a child that answers one message and ends, and of its parent, for the connection."""
    seen = []
    for _ in range(RUNS):
        outcome = run([compiled("forked.c"), CHILDREN], sdp=sdp, env=AT_ONCE)
        assert outcome.code == 0, outcome.describe()
        if sdp:
            assert outcome.report.seen == 2 * CHILDREN, outcome.describe()
            assert outcome.report.count("reasons", "too-young") == 2 * CHILDREN, outcome.describe()
        seen.append(outcome.seen)
    return min(s["child"] for s in seen), min(s["parent"] for s in seen)


def test_a_connection_meets_few_pages():
    """What the library writes around a fork is on one page, what it reads and runs lies together."""
    without, with_library = fewest(False), fewest(True)
    assert with_library[0] <= without[0] + CHILD, (without, with_library)
    assert with_library[1] <= without[1] + PARENT, (without, with_library)
