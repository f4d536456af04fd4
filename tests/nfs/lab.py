"""The kernel's NFS server in a guest, gateways in front of it, and mounts through them."""

PORT = 20049
# Far beyond what a loaded machine needs: the client's kernel waits for ever where something is wrong.
LIMIT_S = 600
# The fields of a line `xprt: rdma` in `/proc/self/mountstats`.
TRANSPORT = "port binds connects connect_s idle_s sends receives bad_xids busy backlog read_chunks write_chunks reply_chunks"
TRANSPORT = (TRANSPORT + " chunk_bytes_sent chunk_bytes_received pullup fixup hardway failed_marshal bad_replies nomsg").split()
SERVER = """
set -e
modprobe -a nfsd rpcrdma nfsv3 nfsv4
mkdir -p /srv/nfs /run/rpcbind /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery /var/lib/nfs/nfsdcltrack /mnt
mount -t tmpfs srv /srv/nfs
: >/var/lib/nfs/etab; : >/var/lib/nfs/rmtab; : >/etc/exports
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
mountpoint -q /var/lib/nfs/rpc_pipefs || mount -t rpc_pipefs sunrpc /var/lib/nfs/rpc_pipefs
# The kernel gives no delegation while locks of version 3 may be reclaimed, which is 50 s unless told otherwise.
modprobe lockd
echo 3 >/proc/sys/fs/nfs/nlm_timeout
echo 1 >/proc/sys/fs/nfs/nlm_grace_period
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
grep -q ^_rpc: /etc/passwd || echo _rpc:x:970:65534::/run/rpcbind:/usr/sbin/nologin >>/etc/passwd
exportfs -o rw,no_root_squash,fsid=0,no_subtree_check '*:/srv/nfs'
setsid rpcbind -w
for i in $(seq 300); do [ -z "$(ss -Htln 'sport = :111')" ] || break; sleep 0.1; done
setsid rpc.mountd --port 20048
echo +3 >/proc/fs/nfsd/versions
echo 'tcp 2049' >/proc/fs/nfsd/portlist
echo 4 >/proc/fs/nfsd/threads
echo Y >/proc/fs/nfsd/v4_end_grace
"""


class Gateway:
    """A gateway that runs in the guest."""

    def __init__(self, lab, options):
        words = [lab.sdp, "nfs", "gateway", "--listen", lab.guest.address, "--server", "127.0.0.1", *options]
        self.guest = lab.guest
        self.command = self.guest.start("exec " + " ".join(map(str, words)))
        self.guest.wait_for(self.listens, LIMIT_S, "the gateway's start")

    def listens(self):
        """Whether it said so; a failure if it has ended."""
        assert not self.command.is_over(), self.command.wait()
        out = self.command.file("out")
        return out.exists() and b"listens" in out.read_bytes()

    def end(self, signal="TERM"):
        """Asks it to end; what it said."""
        self.guest.run(f"kill -{signal} $(pgrep -x sdp)")
        return self.command.wait(LIMIT_S)


class Lab:
    """The guest, with a server."""

    def __init__(self, guest, sdp):
        self.guest, self.sdp = guest, sdp
        guest.run(SERVER, limit_s=LIMIT_S)

    def gateway(self, *options, allow="10.9.0.0/24"):
        """Starts one."""
        return Gateway(self, ["--allow", allow, *options])

    def mount(self, folder, version, *options, ok=(0,)):
        """Mounts through the gateway."""
        words = [f"proto=rdma,port={PORT},vers={version}", *options]
        path = "/"
        if version == "3":
            words.append("nolock,mountproto=tcp,mountport=20048")
            path = "/srv/nfs"
        command = f"mkdir -p {folder}; timeout -s KILL {LIMIT_S // 2} mount -t nfs -o {','.join(words)} {self.guest.address}:{path} {folder}"
        return self.guest.run(command, limit_s=LIMIT_S, ok=ok)

    def unmount(self, folder):
        """And the files that the server has of it."""
        self.guest.run(f"umount {folder}", limit_s=LIMIT_S)

    def transport(self, folder):
        """What the client's kernel has counted of a mount's connection, by its names."""
        text = self.guest.run("cat /proc/self/mountstats").text
        (of,) = [part for part in text.split("\ndevice ") if f" mounted on {folder} with " in part]
        (line,) = [line.split()[1:] for line in of.splitlines() if line.split()[:1] == ["xprt:"]]
        assert line[0] == "rdma", line
        return dict(zip(TRANSPORT, map(int, line[1:])))

    def counts(self, ended):
        """The numbers that a gateway prints when it ends."""
        lines = [line.split() for line in ended.text.splitlines()]
        return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
