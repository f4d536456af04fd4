"""docs/nfs.md, run as it is written: each command prints what the page says. And the service of the package."""

import configparser
import os
import re
import shlex
from pathlib import Path

from nfs.lab import LIMIT_S

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs/nfs.md"
UNIT = TOP / "packaging/systemd/sdp-nfs-gateway.service"
PROMPTS = ("server#", "client#")
# The page's names, and those of the guest, whose file system has no identity of its own.
NAMES = {"eth0": "dummy0", "SERVER": "10.9.0.1", "(rw,sync,no_sub": "(rw,sync,fsid=0,no_sub"}
NAMES["vers=4.2,proto=rdma,port=20049,hard 10.9.0.1:/srv/share"] = "vers=4.2,proto=rdma,port=20049,hard 10.9.0.1:/"
# What the page takes for granted.
BEFORE = """
set -e
exportfs -u '*:/srv/nfs'
mkdir -p /srv/share
mount -t tmpfs share /srv/share
rdma link delete rxe0
ln -sf %(sdp)s /usr/local/bin/sdp
"""
AFTER = """
set -e
: >/etc/exports
exportfs -r
exportfs -f
umount /srv/share
exportfs -o rw,no_root_squash,fsid=0,no_subtree_check '*:/srv/nfs'
"""
# What the manager of a service hears.
LISTENER = """
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("\\0told")
open("/tmp/bound", "w").close()
open("/tmp/told", "wb").write(s.recv(100))
"""
# What it does: a user without privileges but one, a folder.
SERVICE = """
ulimit -l unlimited
install -d -m 700 -o 4242 -g 4242 /run/sdp-nfs
export NOTIFY_SOCKET=@told
exec setpriv --reuid 4242 --regid 4242 --clear-groups --bounding-set=-all,+net_bind_service \
    --inh-caps=-all,+net_bind_service --ambient-caps=-all,+net_bind_service --no-new-privs %(command)s
"""
# Of the gate's time the mounts take enough.
IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))


def steps():
    """Commands of the page, each with what it prints."""
    text = PAGE.read_text(encoding="utf-8")
    for ours, theirs in NAMES.items():
        text = text.replace(ours, theirs)
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            prompt, _, command = line.partition(" ")
            if prompt in PROMPTS:
                found.append((command, []))
            else:
                found[-1][1].append(line)
    return found


def squeezed(text):
    """Runs of blanks are one; lines that were too long for a terminal are whole."""
    return re.sub(r"[ \t]+", " ", re.sub(r"\n {4,}", " ", text)).strip()


def shape(lines):
    """What an output has to look like: `…` is anything."""
    return re.compile(re.escape(squeezed("\n".join(lines))).replace("…", ".*?"), re.DOTALL)


def test_no_command_is_left_out():
    """All that the page has with a prompt is run."""
    text = PAGE.read_text(encoding="utf-8")
    assert len(steps()) == sum(text.count(f"\n{prompt} ") for prompt in PROMPTS) > 15


if IS_WHOLE:

    def test_ten_minutes(lab):
        """From a server on TCP to a client on RDMA."""
        lab.guest.run(BEFORE % {"sdp": lab.sdp}, limit_s=LIMIT_S)
        beside = None
        try:
            for command, lines in steps():
                if command.endswith("&"):
                    beside = lab.guest.start("exec " + command.removesuffix("&"))
                    out = beside.file("out")
                    said = lambda: beside.is_over() or out.exists() and b"listens" in out.read_bytes()
                    lab.guest.wait_for(said, LIMIT_S, command)
                    continue
                done = lab.guest.run(command, limit_s=LIMIT_S)
                assert shape(lines).fullmatch(squeezed(done.text)), f"{command}\nprinted\n{done.text}\nexpected\n{lines}"
        finally:
            lab.guest.run("umount /mnt/share; pkill -x sdp", ok=None)
        ended = beside.wait(LIMIT_S)
        assert ended.status == 0, ended
        counts = lab.counts(ended)
        assert counts["bytes_read"] >= 64 * 8192 and counts["calls_read"] >= 64, counts
        lab.guest.run(AFTER, limit_s=LIMIT_S)

    def test_the_service(lab):
        """Its unit's command as a manager runs it: another user, one capability. It tells when it listens, has a port below 1024 at
        the server, and can be asked."""
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(UNIT)
        service = unit["Service"]
        assert (service["Type"], service["DynamicUser"], service["LimitMEMLOCK"]) == ("notify", "yes", "infinity")
        assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"] == "CAP_NET_BIND_SERVICE"
        assert service["RuntimeDirectory"] == "sdp-nfs"
        words = service["ExecStart"].replace("$OPTIONS", f"--listen {lab.guest.address} --allow 10.9.0.0/24").split()
        assert words.pop(0) == "/usr/bin/sdp"
        manager = lab.guest.start(["python3", "-c", LISTENER])
        lab.guest.run("until [ -e /tmp/bound ]; do sleep 0.1; done", limit_s=LIMIT_S)
        command = lab.guest.start(SERVICE % {"command": shlex.join([str(lab.sdp), *words])})
        lab.guest.wait_for(lambda: manager.is_over() or command.is_over(), LIMIT_S, "the service's start")
        assert not command.is_over(), command.wait()
        assert lab.guest.run("cat /tmp/told").text == "READY=1"
        lab.mount("/mnt/service", "4.2")
        lab.guest.run("echo through >/mnt/service/service; rm /mnt/service/service")
        ports = lab.guest.run("ss -Htn state established dport = :2049 | awk '{print $3}'").text.split()
        assert len(ports) == 1 and int(ports[0].rsplit(":", 1)[1]) < 1024, ports
        assert f"{lab.guest.address}:20049" in lab.guest.run([lab.sdp, "nfs", "stat"]).text
        lab.unmount("/mnt/service")
        lab.guest.run("kill $(pgrep -x sdp)")
        ended = command.wait(LIMIT_S)
        assert ended.status == 0, ended
