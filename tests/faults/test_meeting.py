"""Only the two ends of one connection share lanes, also where addresses are translated and name others."""

import os
import shutil
import subprocess
import sys

import pytest

from .harness import EAGER, PROGRAMS, run


def may_translate():
    """Whether a network namespace can be made here, with rules that translate."""
    if os.geteuid() != 0 or not shutil.which("nft"):
        return False
    probe = "ip link set lo up && nft add table inet x"
    return subprocess.run(["unshare", "--net", "sh", "-c", probe], check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_translate(), reason="needs root, nft and network namespaces")


def translated(*args, **options):
    return alone("translated", *args, **options)


def alone(*args, **options):
    """A scenario in a network namespace of its own."""
    program = [sys.executable, PROGRAMS / "meeting.py", *args]
    outcome = run(["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *program], **options)
    assert outcome.code == 0, outcome.describe()
    return outcome


def same_as_tcp(*args, env):
    """What was heard is what is heard over TCP."""
    plain = translated(*args, sdp=False)
    outcome = translated(*args, env=env)
    assert outcome.seen == plain.seen, f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    return outcome


@pytest.mark.parametrize("env", [EAGER, {}], ids=["eager", "default"])
@pytest.mark.parametrize("drive", ["alone", "beside"])
@pytest.mark.parametrize("how", ["redirect", "source"])
def test_swapped(how, drive, env):
    """Clients and servers of which everybody says the same at first."""
    outcome = same_as_tcp(how, "4", "same", drive, "first", env=env)
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.count("reasons", "translated") > 0, outcome.describe()


@pytest.mark.parametrize("content", ["own", "longer"])
@pytest.mark.parametrize("how", ["redirect", "source"])
def test_contents(how, content):
    outcome = same_as_tcp(how, "4", content, "beside", "first", env=EAGER)
    assert outcome.report.sdp_bytes == 0, outcome.describe()


@pytest.mark.parametrize("family", ["6", "mapped"])
@pytest.mark.parametrize("how", ["redirect", "source"])
def test_families(how, family):
    outcome = same_as_tcp(how, family, "same", "alone", "first", env=EAGER)
    assert outcome.report.sdp_bytes == 0, outcome.describe()


@pytest.mark.parametrize("drive", ["alone", "beside"])
@pytest.mark.parametrize("how", ["redirect", "source"])
def test_met_before(how, drive):
    """Processes that have met without a translation, and keep the segments of that."""
    same_as_tcp(how, "4", "same", drive, "again", env=EAGER)


@pytest.mark.parametrize("again", ["first", "again"])
@pytest.mark.parametrize("family", ["4", "6", "mapped"])
def test_tracked(family, again):
    """Connection tracking alone keeps nobody from a lane."""
    outcome = same_as_tcp("none", family, "own", "beside", again, env=EAGER)
    assert outcome.report.sdp_bytes > 0 and not any(outcome.report.raw["reasons"].values()), outcome.describe()


@pytest.mark.parametrize("env", [EAGER, {}], ids=["eager", "default"])
def test_rewritten(env):
    """A client in a container, translated to the host's address, and one on the host with the same port."""
    plain = alone("rewritten", sdp=False)
    outcome = alone("rewritten", env=env)
    assert outcome.seen == plain.seen, f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    assert outcome.report.sdp_bytes == 0, outcome.describe()


@pytest.mark.parametrize("how", ["source"])
def test_streams(how):
    """Two streams at one pace: each reader gets its own."""
    outcome = alone("streams", how, env=EAGER)
    assert outcome.seen == {"got": ["a", "b"]}, outcome.describe()
