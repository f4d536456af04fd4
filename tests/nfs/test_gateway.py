"""The kernel's client through `sdp nfs gateway`, with the kernel's server behind it by TCP."""

import pytest

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
for n in %(sizes)s; do
    wanted=$(sha256sum </tmp/%(version)s/$n)
    for file in $dir/up.$n $dir/down.$n /srv/nfs/copied/up.$n; do
        [ "$(sha256sum <$file)" = "$wanted" ] || { echo "$file differs"; exit 1; }
    done
    dd if=$dir/down.$n of=/tmp/%(version)s/direct bs=%(direct)s iflag=direct status=none
    cmp /tmp/%(version)s/direct /tmp/%(version)s/$n
done
rm -r $dir
"""


@pytest.mark.parametrize("version", ["3", "4.2"])
def test_files_of_many_sizes_arrive_whole(lab, version):
    """Both ways, buffered and direct; and the gateway moved their bytes by READ and WRITE."""
    gateway = lab.gateway()
    folder = f"/mnt/{version}"
    lab.mount(folder, version)
    assert "proto=rdma" in lab.guest.run(f"grep {folder} /proc/mounts").text
    words = {"mnt": folder, "version": version, "sizes": " ".join(map(str, SIZES)), "direct": 65536}
    lab.guest.run(COPY % words, limit_s=120)
    lab.unmount(folder)
    ended = gateway.end()
    assert ended.status == 0, ended
    counts = lab.counts(ended)
    # The rest of a file behind its last whole page may go inline.
    large = sum(size // 4096 * 4096 for size in SIZES if size > 4096)
    assert counts["bytes_read"] >= large and counts["bytes_written"] >= 3 * large, counts
    assert counts["calls_inline"] and counts["calls_read"] and counts["replies_write"], counts
    assert counts["unknown_records"] == 0, counts
