"""The kernel's client by TCP through `sdp nfs proxy`, which speaks RDMA to the kernel's own listener."""

import json
from pathlib import Path

from nfs.lab import LIMIT_S
from nfs.test_gateway import COPY, IS_WHOLE, RECALL, SIZES
from tools.schema import faults

# Gateways have the usual one.
KERNELS_PORT = 20050
OPTIONS = "vers=4.2,proto=tcp,port=12049,hard"


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


def mount(lab, folder):
    """Mounts through the proxy."""
    lab.guest.run(f"mkdir -p {folder}; timeout -s KILL {LIMIT_S // 2} mount -t nfs -o {OPTIONS} 127.0.0.1:/ {folder}", limit_s=LIMIT_S)


def kernel_listens(lab):
    """The kernel's server, by RDMA."""
    lab.guest.run(f"grep -q 'rdma {KERNELS_PORT}' /proc/fs/nfsd/portlist || echo 'rdma {KERNELS_PORT}' >/proc/fs/nfsd/portlist")


# The gate has little time.
if IS_WHOLE:

    def test_files_of_many_sizes_by_the_kernels_own_listener(lab):
        """Both ways, buffered and direct, in long calls and long replies; and a delegation is recalled through the proxy."""
        kernel_listens(lab)
        proxy = Proxy(lab, KERNELS_PORT)
        version = "4.2"
        folder = f"/mnt/proxy.{version}"
        mount(lab, folder)
        sizes = SIZES[::2]
        words = {"mnt": folder, "version": f"proxy.{version}", "sizes": " ".join(map(str, sizes)), "direct": 65536}
        words.update(count=len(sizes), names=30)
        lab.guest.run(COPY % words, limit_s=LIMIT_S)
        assert lab.guest.run(RECALL % words, limit_s=LIMIT_S).text.split() == ["first", "first", "second"]
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
        assert counts["callbacks"] >= 1 and counts["failed"] == counts["callbacks_dropped"] == counts["again"] == 0, counts
