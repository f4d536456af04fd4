"""What a lane spends of what a program has few of: TCP is the answer before the last of it is used."""

import resource
import sys
from pathlib import Path

import pytest

from .harness import EAGER, PROGRAMS, both, run

LANES = pytest.mark.parametrize("env", [None, EAGER], ids=["default", "eager"])


@LANES
@pytest.mark.parametrize("used", ["one", "all"])
@pytest.mark.parametrize("limit", [16, 300])
def test_poll_of_as_many_entries_as_descriptors(limit, used, env):
    outcome = both("spends", "poll_to_the_limit", limit, used, env=env)
    assert outcome.seen["more"] == "EINVAL" and outcome.seen["child"] == 0, outcome.describe()


@LANES
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_waits_below_the_limit(limit, env):
    """`recv` and `select` ask for no limit, whatever they do inside."""
    outcome = both("spends", "waits_below_the_limit", limit, env=env)
    assert outcome.seen["children"] == [0, 0], outcome.describe()


def dump(where, *, sdp, env=None):
    """A crash's core: bytes on disk, how often payload is in it, whether the statistics page is; and the run."""
    where.mkdir()
    outcome = run([sys.executable, PROGRAMS / "spends.py", "dumps", where, 12], sdp=sdp, env=env)
    (core,) = where.iterdir()
    content = core.read_bytes()
    size = core.stat().st_blocks * 512
    core.unlink()
    return size, content.count(b"secret-of-a-user"), b"sdpstats" in content, outcome


@LANES
def test_core_dumps(tmp_path, env):
    """No rings, and no payload that the program has wiped; the statistics page is there."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8").strip()
    if pattern[:1] in ("|", "/") or resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core files go elsewhere, or are not to be had")
    size, secrets, _, _ = dump(tmp_path / "plain", sdp=False)
    more, told, has_page, outcome = dump(tmp_path / "sdp", sdp=True, env=env)
    assert outcome.seen["lanes"] and outcome.report.sdp_bytes > 1_000_000, outcome.describe()
    assert has_page, "the statistics page is not in the core"
    assert more < size + (4 << 20), (more, size)
    assert told <= secrets + 100, (told, secrets)
