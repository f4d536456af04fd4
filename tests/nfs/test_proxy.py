"""The kernel's client by TCP through `sdp nfs proxy`, which speaks RDMA to the kernel's own listener."""

import json
from pathlib import Path

import pytest

from nfs.lab import LIMIT_S, PORT
from nfs.test_gateway import COPY, IS_WHOLE, RECALL, RECALLING, SIZES, VERSIONS
from tools.schema import faults

# Gateways have the usual one.
KERNELS_PORT = 20050
OPTIONS = {"3": "vers=3,proto=tcp,port=12049,mountproto=tcp,mountport=12048,nolock,hard"}


class Proxy:
    """A proxy that runs in the guest."""

    def __init__(self, lab, port, *options):
        words = [lab.sdp, "nfs", "proxy", f"{lab.guest.address}:{port}", "--mount-port", "20048", *options]
        self.guest = lab.guest
        self.command = self.guest.start("exec " + " ".join(map(str, words)))
        self.guest.wait_for(self.listens, LIMIT_S, "the proxy's start")

    def listens(self):
        """Whether it said so; a failure if it has ended."""
        assert not self.command.is_over(), self.command.wait()
        out = self.command.file("out")
        return out.exists() and b"listens" in out.read_bytes()

    def end(self):
        """Asks it to end; what it said."""
        self.guest.run("kill -TERM $(pgrep -f 'sdp nfs prox[y]')")
        return self.command.wait(LIMIT_S)


def mount(lab, folder, version):
    """Mounts through the proxy."""
    options = OPTIONS.get(version, f"vers={version},proto=tcp,port=12049,hard")
    path = "/srv/nfs" if version == "3" else "/"
    lab.guest.run(f"mkdir -p {folder}; timeout -s KILL {LIMIT_S // 2} mount -t nfs -o {options} 127.0.0.1:{path} {folder}", limit_s=LIMIT_S)


def kernel_listens(lab):
    """The kernel's server, by RDMA."""
    lab.guest.run(f"grep -q 'rdma {KERNELS_PORT}' /proc/fs/nfsd/portlist || echo 'rdma {KERNELS_PORT}' >/proc/fs/nfsd/portlist")


def copies(lab, folder, version):
    """Files both ways, buffered and direct, and a list that is longer than a message; what a recalled delegation printed."""
    sizes = SIZES[::2]
    words = {"mnt": folder, "version": f"proxy.{version}", "sizes": " ".join(map(str, sizes)), "direct": 65536}
    words.update(count=len(sizes), names=30)
    lab.guest.run(COPY % words, limit_s=LIMIT_S)
    if version in RECALLING:
        assert lab.guest.run(RECALL % words, limit_s=LIMIT_S).text.split() == ["first", "first", "second"]


# The gate has little time.
if IS_WHOLE:

    @pytest.mark.parametrize("version", VERSIONS)
    def test_files_of_many_sizes_by_the_kernels_own_listener(lab, version):
        """Both ways, buffered and direct, in long calls and long replies; and a delegation is recalled through the proxy."""
        kernel_listens(lab)
        proxy = Proxy(lab, KERNELS_PORT)
        folder = f"/mnt/proxy.{version}"
        mount(lab, folder, version)
        copies(lab, folder, version)
        assert "proto=tcp" in lab.guest.run(f"grep ' {folder} ' /proc/mounts").text
        said = json.loads(lab.guest.run([lab.sdp, "nfs", "stat", "--json"]).text)
        schema = Path(__file__).resolve().parents[2] / "docs/schema/nfs.json"
        assert not faults(said, json.loads(schema.read_text(encoding="utf-8"))), said
        ((client,),) = [status["clients"] for status in said["proxies"]]
        assert client["state"] == "up" and client["counts"]["connects"] == 1, said
        lab.unmount(folder)
        ended = proxy.end()
        assert ended.status == 0, ended
        counts = lab.counts(ended)
        assert counts["calls_long"] and counts["replies_long"] and counts["replies_inline"], counts
        assert counts["failed"] == counts["callbacks_dropped"] == counts["again"] == 0, counts
        assert counts["callbacks"] >= 1 or version not in RECALLING, counts

    def test_two_versions_at_once_through_proxy_and_gateway(lab):
        """One by RDMA, one by the proxy, one gateway before the server; each sees what the other wrote."""
        gateway = lab.gateway()
        proxy = Proxy(lab, PORT)
        lab.mount("/mnt/both.4.2", "4.2")
        mount(lab, "/mnt/both.3", "3")
        mount(lab, "/mnt/both.4.1", "4.1")
        for version in ("3", "4.1", "4.2"):
            copies(lab, f"/mnt/both.{version}", version)
        every = "3 4.1 4.2"
        script = (
            "set -e; cd /mnt; for v in %s; do (head -c 3000001 /dev/urandom >/tmp/both.$v; cp /tmp/both.$v both.$v/both.$v) & done; "
            "wait; for v in %s; do sync -f both.$v; done; echo 3 >/proc/sys/vm/drop_caches; "
            "for v in %s; do for w in %s; do cmp /tmp/both.$v both.$w/both.$v; done; done; rm both.3/both.*"
        )
        lab.guest.run(script % (every, every, every, every), limit_s=LIMIT_S)
        (status,) = json.loads(lab.guest.run([lab.sdp, "nfs", "stat", "--json"]).text)["gateways"]
        assert len(status["clients"]) == 3 and not status["counts"]["rules"], status
        for version in ("3", "4.1", "4.2"):
            lab.unmount(f"/mnt/both.{version}")
        assert proxy.end().status == 0
        ended = gateway.end()
        assert ended.status == 0, ended
        counts = lab.counts(ended)
        assert counts["calls_long"] and counts["replies_long"] and counts["calls_read"] and counts["replies_write"], counts
        assert counts["callbacks"] >= 2 and counts["unknown_records"] == 0, counts

    @pytest.mark.parametrize("version", ["3", "4.1"])
    def test_one_mount_over_four_queue_pairs(lab, version):
        """Calls go by all of them, to a gateway and to the kernel's server; callbacks by the one that the client bound."""
        gateway = lab.gateway()
        proxy = Proxy(lab, PORT, "--queue-pairs", "4")
        folder = f"/mnt/four.{version}"
        mount(lab, folder, version)
        copies(lab, folder, version)
        said = json.loads(lab.guest.run([lab.sdp, "nfs", "stat", "--json"]).text)
        schema = Path(__file__).resolve().parents[2] / "docs/schema/nfs.json"
        assert not faults(said, json.loads(schema.read_text(encoding="utf-8"))), said
        ((client,),) = [status["clients"] for status in said["proxies"]]
        assert client["queue_pairs"] == ["up"] * 4 and client["counts"]["connects"] == 4, said
        (status,) = said["gateways"]
        assert all(of["counts"]["calls"] > 10 for of in status["clients"]) and len(status["clients"]) == 4, status
        lab.unmount(folder)
        ended = proxy.end()
        counts = lab.counts(ended)
        assert ended.status == 0 and counts["failed"] == counts["callbacks_dropped"] == counts["again"] == 0, ended
        assert counts["callbacks"] >= 1 or version not in RECALLING, counts
        assert gateway.end().status == 0
