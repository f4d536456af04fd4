"""The kernel's client through `sdp nfs gateway`, with the kernel's server behind it by TCP."""

import json
import os
from pathlib import Path

import pytest

from nfs.lab import LIMIT_S, PORT
from tools.schema import faults

SIZES = [1, 3600, 4999, 8192, 131073, 4 << 20]
COPY = """
set -e
mnt=%(mnt)s; dir=$mnt/copied; mkdir -p $dir /tmp/%(version)s
for n in %(sizes)s; do
    head -c $n /dev/urandom >/tmp/%(version)s/$n
    cp /tmp/%(version)s/$n $dir/up.$n
    cp /tmp/%(version)s/$n /srv/nfs/copied/down.$n
done
sync -f $mnt
echo 3 >/proc/sys/vm/drop_caches
cd /tmp/%(version)s
sha256sum %(sizes)s >sums
while read sum n; do
    for file in $dir/up.$n $dir/down.$n /srv/nfs/copied/up.$n; do echo "$sum  $file"; done
done <sums >wanted
sha256sum --check --quiet wanted
for n in %(sizes)s; do
    dd if=$dir/down.$n of=/tmp/%(version)s/direct bs=%(direct)s iflag=direct status=none
    cmp /tmp/%(version)s/direct /tmp/%(version)s/$n
done
long=$(printf 'x%%.0s' $(seq 180))
for i in $(seq %(names)s); do : >$dir/$long.$i; done
ln -s $(printf '/some%%.0s' $(seq 180)) $dir/link
echo 2 >/proc/sys/vm/drop_caches
[ $(ls $dir | wc -l) = $((%(names)s + 1 + 2 * %(count)s)) ]
[ "$(readlink $dir/link)" = "$(readlink /srv/nfs/copied/link)" ]
cd /; rm -r $dir
"""
# The server breaks the client's delegation before it lets a local program write.
RECALL = """
set -e
echo first >/srv/nfs/shared
exec 3<%(mnt)s/shared
cat <&3
timeout 300 sh -c 'echo second >>/srv/nfs/shared'
exec 3<&-
cat %(mnt)s/shared
rm /srv/nfs/shared
"""
# Each step can be done once, and fails when it is done again.
STEPS = """
set -e
mkdir %(mnt)s/steps; cd %(mnt)s/steps
n=0
while [ ! -e /tmp/enough ]; do
    n=$((n + 1))
    mkdir a; mv a b; : >f; ln f g; rm f g; rmdir b
    echo $n >/tmp/steps
done
cd /; rmdir %(mnt)s/steps
"""
# The gate has little time; the rest is run where SDP_TEST_WHOLE is set.
IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
# Their callbacks come by the connection of the calls.
RECALLING = ("4.1", "4.2")
VERSIONS = ["3", "4.0", "4.1", "4.2"] if IS_WHOLE else ["3", "4.2"]


def advised(lab):
    """`sdp doctor --nfs` finds device, server and gateway, and says what a client has to type."""
    found = json.loads(lab.guest.run([lab.sdp, "doctor", "--nfs", "--json"]).text)["findings"]
    whats = {f["check"]: f["what"] for f in found if f["grade"] == "ok"}
    address = lab.guest.address
    assert f"rxe0: {address} first" in whats["nfs-device"] and "rpcrdma is there" in whats["nfs-module"], found
    assert f"a gateway listens on {address}:{PORT} for 127.0.0.1:2049" in whats["nfs-gateway"], found
    assert "answers NULL, version 3 and 4" in whats["nfs-server"], found
    assert f"proto=rdma,port={PORT},hard {address}:/PATH" in whats["nfs-mount"], found


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_many_sizes_arrive_whole(lab, version):
    """Both ways, buffered and direct; and the gateway moved their bytes by READ and WRITE."""
    gateway = lab.gateway()
    folder = f"/mnt/{version}"
    if version == "3":
        lab.mount(folder, version)
    else:
        words = ["mkdir", "-p", folder, "&&", lab.sdp, "nfs", "mount", "--nfs-version", version, f"{lab.guest.address}:/", folder]
        done = lab.guest.run(" ".join(map(str, words)), limit_s=LIMIT_S)
        assert f"by RDMA: {lab.guest.address}:{PORT} answers rxe0".encode() in done.err, done
    sizes = SIZES if IS_WHOLE or version == "4.2" else SIZES[::2]
    words = {"mnt": folder, "version": version, "sizes": " ".join(map(str, sizes)), "direct": 65536}
    # Their list takes more than a message.
    words.update(count=len(sizes), names=100 if IS_WHOLE else 30)
    lab.guest.run(COPY % words, limit_s=LIMIT_S)
    recalls = version in RECALLING
    if recalls:
        assert lab.guest.run(RECALL % words, limit_s=LIMIT_S).text.split() == ["first", "first", "second"]
    (status,) = json.loads(lab.guest.run([lab.sdp, "nfs", "stat", "--json"]).text)["gateways"]
    schema = Path(__file__).resolve().parents[2] / "docs/schema/nfs.json"
    assert not faults({"schema": 1, "gateways": [status]}, json.loads(schema.read_text(encoding="utf-8")))
    assert [client["address"] for client in status["clients"]] == [lab.guest.address]
    if version == "4.2":
        advised(lab)
    seen = lab.transport(folder)
    lab.unmount(folder)
    ended = gateway.end()
    assert ended.status == 0, ended
    counts = lab.counts(ended)
    assert seen["connects"] == 1 and seen["bad_xids"] == seen["bad_replies"] == 0, seen
    # Callbacks are not among what it receives, but their answers among what it sends.
    assert 0 <= seen["sends"] - seen["receives"] <= counts["callbacks"], (seen, counts)
    assert seen["read_chunks"] == counts["calls_read"] and seen["write_chunks"] >= counts["replies_write"] > 0, (seen, counts)
    assert counts["calls"] >= status["counts"]["calls"] >= sum(status["microseconds"]["server"]) > 0
    # The rest of a file behind its last whole page may go inline.
    large = sum(size // 4096 * 4096 for size in sizes if size > 4096)
    assert counts["bytes_read"] >= large and counts["bytes_written"] >= 3 * large, counts
    assert counts["calls_inline"] and counts["calls_read"] and counts["replies_write"], counts
    assert counts["unknown_records"] == 0, counts
    assert counts["callbacks"] >= 1 or not recalls, counts


if IS_WHOLE:

    def test_ends_of_gateways_cost_no_step_and_double_none(lab):
        """Killed, asked to end, and replaced, at moments that differ: the client's kernel connects to the next one and sends its
        calls again; the server knows those that it had, because they come from the port of before."""
        gateway = lab.gateway()
        folder = "/mnt/steps"
        lab.mount(folder, "3")
        ports = "ss -Htn state established dport = :2049 | awk '{print $3}'"
        before = lab.guest.run(ports).text
        lab.guest.run("rm -f /tmp/enough /tmp/steps")
        steps = lab.guest.start(STEPS % {"mnt": folder})
        count = lambda: int(lab.guest.run("cat /tmp/steps 2>/dev/null || echo 0").text or 0)
        reached = 0
        for signal, wait_s in [("KILL", 0.0), ("", 0.2), ("TERM", 0.3), ("KILL", 0.11), ("", 0.0), ("KILL", 0.23)]:
            lab.guest.wait_for(lambda: steps.is_over() or count() > reached + 10, LIMIT_S, "steps")
            lab.guest.run(f"sleep {wait_s}")
            if signal:
                ended = gateway.end(signal)
                next_one = lab.gateway()
            else:
                next_one = lab.gateway("--takeover")
                ended = gateway.command.wait(LIMIT_S)
            assert ended.status == (137 if signal == "KILL" else 0), ended
            reached, gateway = count(), next_one
        lab.guest.wait_for(lambda: steps.is_over() or count() > reached + 10, LIMIT_S, "steps behind the last end")
        assert lab.guest.run(ports).text == before
        lab.guest.run("touch /tmp/enough")
        done = steps.wait(LIMIT_S)
        assert done.status == 0, done
        lab.unmount(folder)
        assert gateway.end().status == 0


def test_a_client_that_is_not_named_is_refused(lab):
    """And the mount fails; the gateway says who it was. `sdp nfs mount` takes TCP then, and says why."""
    gateway = lab.gateway(allow="10.8.0.0/16")
    shown = lab.guest.run([lab.sdp, "nfs", "mount", "--print", f"{lab.guest.address}:/", "/mnt"])
    assert shown.text == f"mount -t nfs -o vers=4.2,proto=tcp,hard {lab.guest.address}:/ /mnt\n"
    assert b"not by RDMA, port 20049: rxe0: nobody listens there, or this host is refused" in shown.err, shown
    done = lab.mount("/mnt/refused", "4.2", "retry=0", ok=None)
    assert done.status != 0, done
    ended = gateway.end()
    assert f"{lab.guest.address} refused: not in --allow".encode() in ended.err, ended
    assert lab.counts(ended)["calls"] == 0


def test_without_allow_nothing_listens(lab):
    """The option has no default, and the message names it."""
    done = lab.guest.run([lab.sdp, "nfs", "gateway", "--listen", f"{lab.guest.address}:{PORT}"], ok=(2,))
    assert b"--allow" in done.err
