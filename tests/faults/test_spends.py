"""What a lane spends of what a program has few of: TCP is the answer before the last of it is used."""

import os
import resource
import subprocess
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


@LANES
def test_last_mappings(env):
    """The program's own `mmap` and threads succeed, as many as could be expected over TCP; lanes were had as well."""
    if int(Path("/proc/sys/vm/max_map_count").read_text(encoding="utf-8")) > 300_000:
        pytest.skip("vm.max_map_count is high here")
    outcome = both("spends", "last_mappings", 500, 700, env=env)
    assert outcome.seen["talk"] == 500 and outcome.seen["maps"] == 175, outcome.describe()
    assert outcome.report.raw["connections"]["sdp"] >= 100, outcome.describe()
    assert outcome.report.count("reasons", "no-memory") > 0, outcome.describe()


@LANES
def test_little_address_space(env):
    outcome = both("spends", "little_space", 100, env=env)
    assert outcome.seen["talk"] == 40 and outcome.seen["child"] == [0], outcome.describe()
    assert outcome.report.count("reasons", "no-memory") > 0, outcome.describe()


@pytest.fixture
def memory_group(request):
    """A memory control group of so many MiB, of either version."""
    for root, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(root) / f"sdp-spends-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text(str(request.param << 20), encoding="utf-8")
            break
        group.rmdir()
    else:
        pytest.skip("no memory control group can be made here")
    yield group
    for pid in (group / "cgroup.procs").read_text(encoding="utf-8").split():
        os.kill(int(pid), 9)
    for _ in range(1000):
        try:
            return group.rmdir()
        except OSError:
            subprocess.run(["sleep", "0.02"], check=False)


@LANES
@pytest.mark.parametrize(("memory_group", "count"), [(64, 100), (24, 60)], indirect=["memory_group"])
def test_little_group_memory(memory_group, count, env):
    """Rings are a budget of the group's memory: a page of one that meets the limit would get the program killed."""
    outcome = both("spends", "little_group_memory", memory_group, count, env=env)
    assert outcome.seen == {"good": count, "alive": True}, outcome.describe()


TRACKED = """
ip link set lo up || exit 77
nft -f - <<'RULES' || exit 77
table inet f {
  chain i {
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    tcp flags & (syn|ack|rst|fin) == syn ct state new accept
  }
}
RULES
echo 2 > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established || exit 77
exec "$@"
"""


@LANES
def test_busy_connections_are_not_forgotten(env):
    """As TCP's packets would, now and then a packet tells what tracks connections that one goes on."""
    program = [sys.executable, PROGRAMS / "spends.py", "forgotten"]
    outcome = run(["unshare", "--net", "sh", "-c", TRACKED, "sh", *program], env=env)
    if outcome.code == 77 or "unshare:" in outcome.err:
        pytest.skip("needs network namespaces, nft and connection tracking")
    assert outcome.code == 0, outcome.describe()
    usual = [0] + [
        int(Path(f"/proc/sys/net/ipv4/tcp_keepalive_{name}").read_text(encoding="utf-8"))
        for name in ("time", "intvl", "probes")
    ]
    assert outcome.seen == {
        "talk": True,
        "lanes": True,
        "options": usual,
        "left": 1,
        "killed": True,
        "end": [True, True],
        "children": [0, 0],
    }, outcome.describe()


@LANES
def test_an_end_that_no_packet_tells(env):
    """A firewall drops the FIN of a peer that closes or shuts down: who sleeps on its lane is told by that. What a wait says a
    receive call finds, also where the peer has left its lanes since."""
    ways = ["close", "shutdown", "leave"]
    program = [sys.executable, PROGRAMS / "spends.py", "silent_end", *ways]
    words = "ip link set lo up && nft list ruleset >&2 || exit 77; exec \"$@\""
    outcome = run(["unshare", "--net", "sh", "-c", words, "sh", *program], env=env, limit_s=60)
    if outcome.code == 77 or "unshare:" in outcome.err:
        pytest.skip("needs network namespaces and nft")
    assert outcome.code == 0, outcome.describe()
    waits = [f"{way} {how}" for way in ways for how in ("recv", "poll", "select", "level", "edge")]
    # The last wait but those for an edge finds the end once more.
    told = {wait: [True, not wait.endswith("edge"), True, True, True] for wait in waits}
    children = {f"{wait} child": 0 for wait in waits}
    assert outcome.seen == {**told, **children, "lanes": True}, outcome.describe()


@pytest.mark.parametrize("who", ["self", "heir"])
@LANES
def test_own_probes_stay_as_they_were_set(who, env):
    """The options of keepalive are the socket's, and so of each process that has it."""
    outcome = both("spends", "own_probes", who, env=env)
    assert outcome.seen["options"] == [1, 77, 11, 3], outcome.describe()
