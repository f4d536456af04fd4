"""Two containers of a real runtime, crun, with what Podman gives by default: its filter of system calls, its capabilities, no new
privileges; apart but for one directory. Users of both, with user namespaces and without; payload goes over SDP, by the counters."""

import json
import os
import shutil
import tempfile
import weakref
from pathlib import Path

import pytest

from machines.kernel import NoGuests
from machines.layer import prepare_layer
from support.containers import SERVED, WAYS, Containers
from support.procs import Program
from support.report import Report
from support.stage import python

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = "across.py"
LIMIT_S = 60
# The runtime, and the filter that Podman gives it.
PACKAGES = ["crun", "golang-github-containers-common"]
CAPABILITIES = """CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT"""
# This machine's files as a root; control groups of one kind, which the runtime wants to see.
SCRIPT = r"""
set -e
mount --make-rprivate /
mkdir "$1/over"
mount -t tmpfs none "$1/over"
mkdir "$1/over/upper" "$1/over/work"
mount -t overlay -o "lowerdir=/,upperdir=$1/over/upper,workdir=$1/over/work" none "$1/rootfs"
mount -t cgroup2 none /sys/fs/cgroup
export LD_LIBRARY_PATH="$2/usr/lib/x86_64-linux-gnu"
exec "$2/usr/bin/crun" --cgroup-manager=disabled --root "$1/state" run -b "$1" "$3"
"""


@pytest.fixture(scope="module", name="layer")
def _layer():
    """The runtime's files."""
    if os.geteuid() != 0:
        pytest.skip("no containers can be made here: not root")
    try:
        return prepare_layer("crun", PACKAGES)
    except NoGuests as why:
        pytest.skip(f"no packages can be had: {why}")


@pytest.fixture(scope="module", name="net")
def _net():
    """The containers' networks, and the directory."""
    if not Containers.may_be():
        pytest.skip("no network namespaces can be made here")
    containers = Containers()
    yield containers
    containers.close()


def rules(profile):
    """Those of a profile that hold for these capabilities, as the runtime wants them."""
    capabilities = {f"CAP_{name}" for name in CAPABILITIES.split()}
    for rule in profile["syscalls"]:
        wants, bars = rule.get("includes") or {}, rule.get("excludes") or {}
        is_ours = set(wants.get("caps") or []) <= capabilities and "amd64" in (wants.get("arches") or ["amd64"])
        if not is_ours or set(bars.get("caps") or []) & capabilities or "amd64" in (bars.get("arches") or []):
            continue
        kept = {key: rule[key] for key in ("action", "args", "errnoRet") if rule.get(key) is not None}
        yield {"names": rule.get("names") or [rule["name"]], **kept}


class Play:
    """The containers of one test."""

    def __init__(self, net, layer, artifacts):
        self.net, self.layer, self.artifacts = net, layer, artifacts
        self.dir = Path(tempfile.mkdtemp(prefix="sdp-runtime-"))
        self.dir.chmod(0o1777)
        weakref.finalize(self, shutil.rmtree, self.dir, True)
        shutil.copy(TESTS / "faults/programs" / PROGRAM, self.dir)
        self.count = 0

    def form(self, space, uid, base, command):
        """What the runtime is told of a container."""
        profile = json.loads((self.layer / "usr/share/containers/seccomp.json").read_text(encoding="utf-8"))
        names = [f"CAP_{name}" for name in CAPABILITIES.split()]
        spaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "cgroup")]
        spaces.append({"type": "network", "path": f"/proc/{space.holder.pid}/ns/net"})
        linux = {
            "namespaces": spaces,
            "seccomp": {
                "defaultAction": profile["defaultAction"], "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
                "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"], "syscalls": list(rules(profile)),
            },
            "maskedPaths": ["/proc/kcore", "/proc/keys"], "readonlyPaths": ["/proc/sys"],
        }
        if base:
            spaces.append({"type": "user"})
            linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": base, "size": 65536}]
        shared = (self.net.directory, self.dir, self.artifacts.dir)
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": uid, "gid": uid}, "cwd": str(self.dir), "noNewPrivileges": True,
                "args": [str(word) for word in command], "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"],
                "capabilities": {
                    kind: names if uid == 0 or kind == "bounding" else [] for kind in ("bounding", "effective", "permitted")},
            },
            "root": {"path": "rootfs", "readonly": True},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                *({"destination": str(path), "type": "bind", "source": str(path), "options": ["rbind", "rw"]} for path in shared),
            ],
            "linux": linux,
        }

    def start(self, space, uid, base, *argv):
        """A container whose one command has the library; with its report's path."""
        self.count += 1
        report = self.dir / f"{self.count}.json"
        command = [self.artifacts.sdp, "run", "--no-config", "--report", report, "--set", f"rendezvous_dir={self.net.directory}"]
        command += ["--", python(), self.dir / PROGRAM, *argv]
        bundle = self.dir / f"bundle-{self.count}"
        (bundle / "rootfs").mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(self.form(space, uid, base, command)), encoding="utf-8")
        words = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", bundle, self.layer, f"{self.dir.name}-{self.count}"]
        program = Program(words, self.dir / f"{self.count}.log", cwd="/")
        program.report = report
        return program

    def end(self, program):
        """Waits for it; its report."""
        code = program.wait(LIMIT_S)
        assert code == 0, program.output().decode(errors="replace")
        return Report.read(program.report.name, program.report)


# Of server and client: the user in the container, and where the container's users begin on the host; 0: no user namespace.
USERS = {"two-users": ((33, 0), (5, 0)), "root": ((0, 0), (0, 0)), "user-namespaces": ((33, 100000), (33, 200000))}


@pytest.mark.parametrize("way", ["direct", "masquerade"])
@pytest.mark.parametrize("users", USERS)
def test_containers_of_a_runtime(ladder, net, layer, users, way):
    """Messages come back as they were, and go over SDP."""
    if not net.translates and way != "direct":
        pytest.skip("no address translation (nft) here")
    play = Play(net, layer, ladder.artifacts)
    server, client = USERS[users]
    serving = play.start(net.b, *server, "serve", "0.0.0.0", SERVED, "blocking", 1)
    net.b.until_listening(SERVED)
    asking = play.start(net.a, *client, "ask", *WAYS[way], 3000, 700)
    for report in (play.end(asking), play.end(serving)):
        assert report.sdp_bytes >= 0.75 * (report.sdp_bytes + report.tcp_bytes), report.describe()
    assert net.names() == [], "names of meetings that are over"
