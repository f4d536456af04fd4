"""What a fork child of a server costs is counted in pages; times decide nothing."""

import os
import re
import struct
import sys

from .harness import TARGET, compiled, run

CHILDREN = 60
# Where things are mapped is random: the library's code may lie in more or fewer of the pieces that the kernel maps at
# a time, and so may libc's, of which a process with the library runs more.
RUNS = 3
# The page that the library writes around a fork (fork_page.rs).
WRITTEN = 1
# Faults: that page, the family's and the counters', and the pieces of 64 KiB in which the code lies: one, or two where
# the loader does not know of alignments beyond a page. Three to five have been seen; every page that is written more is one more.
CHILD = 7
# That page again, and pieces of code that the kernel took out of the page tables. One has been seen.
PARENT = 5
# The library's code with its constants; before Linux 6.12 its initialised data, too (image.rs).
KERNEL = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
IS_EXCHANGED = KERNEL >= (6, 12) and os.uname().machine == "x86_64"
MAPPINGS = 1 if IS_EXCHANGED else 2
# That, family memory, counters; and the zeros, which else the kernel need not join with anything.
ADDED = 3 if IS_EXCHANGED else 5
# With a number from here on the kernel makes a larger table of descriptors for each child.
TABLE = 64
# Pages whose translations share a cache line, from the library's beginning on, and bytes of each.
TRANSLATED = 8
PAGE = 4096
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
    assert with_library["all"] <= without["all"] + ADDED, (without, with_library)
    assert with_library["highest"] < TABLE, with_library
    assert with_library["placed"] == 1, with_library
    assert with_library["child"] <= without["child"] + CHILD, (without, with_library)
    assert with_library["parent"] <= without["parent"] + PARENT, (without, with_library)


# Mappings of the library in a process that has had a connection, and has one page locked.
LOCKED = """
import ctypes, json, mmap, socket
page = mmap.mmap(-1, mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
assert ctypes.CDLL(None).mlock(ctypes.c_void_p(address), mmap.PAGESIZE) == 0
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
print(json.dumps({"mappings": sum("libsdp.so" in line for line in open("/proc/self/maps"))}))
"""


def test_locked_memory_stays_where_it_is():
    """What a program has locked is not exchanged for pages that are not."""
    outcome = run([sys.executable, "-c", LOCKED])
    assert outcome.code == 0 and outcome.seen == {"mappings": 2}, outcome.describe()


# System calls of a child's: who it is, at the start, and whether it still is, at its end; and the program's own, which the
# library makes in libc's place (direct.rs): two times `close` and `read`, once `write`.
CALLS = 2 + 5


def section(name):
    """Offsets of a section of the library's file, from and to."""
    file = (TARGET / "release" / "libsdp.so").read_bytes()
    (at,) = struct.unpack_from("<Q", file, 0x28)
    size, count, names = struct.unpack_from("<HHH", file, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", file, at + i * size) for i in range(count)]
    texts = headers[names][4]
    for header in headers:
        if file[texts + header[0] :].startswith(name + b"\0"):
            return header[4], header[4] + header[5]
    raise AssertionError(f"no section {name}")


def test_a_child_runs_what_lies_together():
    """Code of the library that lies elsewhere would be one more page fault for each child, and one more group of pages to translate."""
    begin, end = section(b".text.hot")
    if os.uname().machine == "x86_64":  # only there the linker is told the order
        end = min(end, TRANSLATED * PAGE)
    outcome = run([compiled("stepped.c"), begin, end], env=AT_ONCE)
    assert outcome.code == 0, outcome.describe()
    seen = outcome.seen
    assert seen["steps"] > 0, outcome.describe()
    assert seen["elsewhere"] == 0, f"at offset {seen['first']:#x}: {outcome.describe()}"
    assert seen["calls"] == CALLS, outcome.describe()
