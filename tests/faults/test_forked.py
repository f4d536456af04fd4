"""What a fork child of a server costs is counted in pages; times decide nothing."""

from .harness import compiled, run

CHILDREN = 60
# Where things are mapped is random: the library's code may lie in more or fewer of the pieces that the kernel maps at
# a time, and so may libc's, of which a process with the library runs more.
RUNS = 3
# The page that the library writes around a fork (hot.rs).
WRITTEN = 1
# Faults: that page, the family's and the counters', and the pieces of 64 KiB in which the code and the constants lie,
# whose number depends on how a build laid them out. Four to six have been seen; every page that is written more is one more,
# and more than a few are a mistake.
CHILD = 8
# That page again, and pieces of code that the kernel took out of the page tables. One has been seen.
PARENT = 5
# The library's code with its constants, and its initialised data.
MAPPINGS = 2
# With a number from here on the kernel makes a larger table of descriptors for each child.
TABLE = 64
# What the loader looks up at a first call would be counted too.
AT_ONCE = {"LD_BIND_NOW": "1"}


def fewest(sdp):
    """Faults of a child that answers one message and ends, of its parent for the connection, and pages written."""
    seen = []
    for _ in range(RUNS):
        outcome = run([compiled("forked.c"), CHILDREN], sdp=sdp, env=AT_ONCE)
        assert outcome.code == 0, outcome.describe()
        if sdp:
            assert outcome.report.seen == 2 * CHILDREN, outcome.describe()
            assert outcome.report.count("reasons", "too-young") == 2 * CHILDREN, outcome.describe()
        seen.append(outcome.seen)
    return {what: min(s[what] for s in seen) for what in seen[0]}


def test_a_connection_meets_few_pages():
    """What the library writes around a fork is on one page, what it reads and runs lies together."""
    without, with_library = fewest(False), fewest(True)
    assert without["written"] == 0, without
    assert with_library["written"] == WRITTEN, with_library
    assert with_library["mappings"] == MAPPINGS, with_library
    assert with_library["highest"] < TABLE, with_library
    assert with_library["child"] <= without["child"] + CHILD, (without, with_library)
    assert with_library["parent"] <= without["parent"] + PARENT, (without, with_library)
