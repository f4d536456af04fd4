"""`sdp doctor` and `sdp devices`: each cause is provoked, found, explained, and told from a machine without it."""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.stage import python
from tools.sdp import environment, sdp

pytestmark = pytest.mark.quick

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes set-id files, namespaces and other users")


def examine(ladder, *arguments, code=None, **options):
    """Findings by their check; the exit status goes by the worst."""
    done = sdp(ladder, "doctor", "--json", *arguments, **options)
    form = json.loads(done.stdout)
    assert form["schema"] == 1
    bad = [f for f in form["findings"] if f["grade"] in ("slow", "stop")]
    assert done.returncode == (1 if bad else 0) and form["ok"] == (not bad), done.stdout + done.stderr
    assert code is None or done.returncode == code, done.stdout
    assert all(f["advice"] for f in bad if f["check"] not in ("process", "program")), bad
    found = {}
    for finding in form["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


def grades(found, check):
    """The grades of a check's findings."""
    return [f["grade"] for f in found.get(check, [])]


@pytest.fixture(name="machine")
def _machine(tmp_path):
    """Files of a machine with nothing wrong, to be changed."""
    def write(name, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    write.root = tmp_path
    write("proc/sys/kernel/osrelease", "6.1.0-13-amd64\n")
    write("proc/self/status", "Name:\tbash\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n")
    write("proc/self/limits", "Max open files            20000                20000                files\n"
                              "Max locked memory         unlimited            unlimited            bytes\n")
    write("proc/self/uid_map", "         0          0 4294967295\n")
    write("proc/self/mounts", "proc /proc proc rw,nosuid 0 0\n")
    write("proc/modules")
    write("etc/libsdp.conf", "use both server * *:*\nuse both client * *:*\n")
    return write


def judge(ladder, machine, *arguments, **options):
    """Findings about the machine of files."""
    return examine(ladder, "--sysroot", machine.root, *arguments, **options)


def test_nothing_must_be_done_where_nothing_is_wrong(ladder, machine):
    """Of files, and here but for what this machine has."""
    found = judge(ladder, machine, code=0)
    assert not [f for fs in found.values() for f in fs if f["grade"] in ("slow", "stop")]
    found = examine(ladder)
    assert grades(found, "libc") == ["ok"] and grades(found, "library") == ["ok"]
    assert "nothing must be done" in sdp(ladder, "doctor", "--sysroot", machine.root).stdout


def test_yama(ladder, machine):
    """A price in scope 1, and one to be mended above."""
    for scope, grade in (("0", "ok"), ("1", "note"), ("2", "slow"), ("3", "slow")):
        machine("proc/sys/kernel/yama/ptrace_scope", scope + "\n")
        assert grades(judge(ladder, machine), "yama") == [grade]


def test_directory_of_containers(ladder, machine):
    """Sticky where others may write; who may see first numbers."""
    assert grades(judge(ladder, machine), "containers") == ["ok"], "there is none, and none is wanted"
    folder = machine.root / "run/sdp"
    folder.mkdir(parents=True)
    for mode, grade in ((0o1733, "ok"), (0o755, "ok"), (0o777, "slow"), (0o733, "slow")):
        folder.chmod(mode)
        found = judge(ladder, machine, code=0 if grade == "ok" else 1)
        assert grades(found, "containers") == [grade], found["containers"]
    folder.chmod(0o1733)
    machine("proc/sys/net/core/tstamp_allow_data", "0\n")
    assert "tstamp_allow_data" in judge(ladder, machine, code=1)["containers"][0]["what"]


def test_an_old_kernel(ladder, machine):
    """Without pidfd_getfd."""
    machine("proc/sys/kernel/osrelease", "5.4.0-150-generic\n")
    assert grades(judge(ladder, machine, code=1), "kernel") == ["slow"]


def test_an_old_libc(ladder, tmp_path):
    """One that says that it is, in front of the one that is there."""
    source, library = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text('const char *gnu_get_libc_version(void) { return "2.31"; }\n', encoding="utf-8")
    subprocess.run(["cc", "-shared", "-o", library, source], check=True)
    found = examine(ladder, code=1, env=environment(LD_PRELOAD=str(library)))
    assert grades(found, "libc") == ["stop"]
    assert "2.31" in found["libc"][0]["what"] and "2.34" in found["libc"][0]["advice"]


def test_seccomp_of_a_container(ladder, machine):
    """A filter that was there before."""
    machine("proc/self/status", "Uid:\t1\t1\t1\t1\nCapEff:\t0\nSeccomp:\t2\n")
    found = judge(ladder, machine, code=0)
    assert grades(found, "seccomp") == ["note"], "what needs nothing is nothing to do"


PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_SET_NO_NEW_PRIVS = 38


def refuse(*numbers):
    """Installs a filter that refuses system calls, in a child before it executes."""
    def install():
        class Program(ctypes.Structure):  # pylint: disable=too-few-public-methods
            """struct sock_fprog"""

            _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

        steps = [(0x20, 0, 0, 0)]
        for number in numbers:
            steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 1)]
        steps += [(0x06, 0, 0, 0x7FFF0000)]
        raw = b"".join(code.to_bytes(2, "little") + bytes([yes, no]) + value.to_bytes(4, "little")
                       for code, yes, no, value in steps)
        text = ctypes.create_string_buffer(raw, len(raw))
        program = Program(len(steps), ctypes.cast(text, ctypes.c_void_p))
        libc = ctypes.CDLL(None)
        assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) == 0
    return install


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_calls_that_a_filter_refuses(ladder):
    """memfd_create stops it, process_vm_readv costs something."""
    found = examine(ladder, code=1, preexec_fn=refuse(319))
    assert grades(found, "calls") == ["stop"] and "memfd_create" in found["calls"][0]["what"]
    assert grades(found, "seccomp") == ["note"]
    found = examine(ladder, code=1, preexec_fn=refuse(310))
    assert grades(found, "calls") == ["slow"]


def test_few_descriptors_and_small_files(ladder):
    """Limits of the shell."""
    found = examine(ladder, code=1, before=["prlimit", "--nofile=64:64"])
    assert grades(found, "descriptors") == ["slow"]
    found = examine(ladder, code=1, before=["prlimit", "--fsize=65536:65536"])
    assert grades(found, "file-size") == ["stop"]


def test_a_full_table_of_descriptors(ladder, machine):
    """A running process with no number left."""
    machine("proc/77/status", "Name:\tfull\nUid:\t0\t0\t0\t0\nSeccomp:\t0\n")
    machine("proc/77/limits", "Max open files            20                   20                   files\n")
    machine("proc/77/maps", "7f0 /usr/lib/libsdp.so.1\n")
    for number in range(18):
        machine(f"proc/77/fd/{number}")
    assert "stop" in grades(judge(ladder, machine, "--pid", 77, code=1), "descriptors")


def infiniband(machine, state="4: ACTIVE"):
    """A device with one port and an interface."""
    at = "sys/class/infiniband/mlx5_0"
    machine(f"{at}/node_type", "1: CA\n")
    machine(f"{at}/fw_ver", "16.35.2000\n")
    machine(f"{at}/board_id", "MT_0000000008\n")
    machine(f"{at}/ports/1/state", state + "\n")
    machine(f"{at}/ports/1/phys_state", "5: LinkUp\n")
    machine(f"{at}/ports/1/link_layer", "InfiniBand\n")
    machine(f"{at}/ports/1/rate", "100 Gb/sec (4X EDR)\n")
    machine("sys/class/net/ib0/operstate", "up\n")
    machine("sys/class/net/ib0/type", "32\n")
    machine("sys/class/net/ib0/mtu", "2044\n")
    machine("sys/class/net/ib0/dev_port", "0\n")
    (machine.root / "sys/class/net/ib0/device/infiniband/mlx5_0").mkdir(parents=True)


def test_rdma_modules_permissions_and_memory(ladder, machine):
    """Each is named; none asks for anything, for it is about other hosts."""
    found = judge(ladder, machine, code=0)
    assert "no RDMA device and no RDMA modules" in found["rdma"][0]["what"]
    machine("sys/bus/pci/devices/0000:05:00.0/class", "0x020700\n")
    found = judge(ladder, machine, code=0)
    assert "without a driver" in found["rdma"][0]["what"] and "modprobe" in found["rdma"][0]["advice"]
    infiniband(machine, "1: DOWN")
    machine("proc/self/limits", "Max locked memory         65536                65536                bytes\n")
    found = judge(ladder, machine, code=0)
    whats = " ".join(f["what"] for f in found["rdma"])
    assert "port 1 is DOWN" in whats and "no /dev/infiniband/uverbs" in whats
    assert grades(found, "memlock") == ["note"]
    assert "64 KiB" in found["memlock"][0]["what"] and "not enough for a connection" in found["memlock"][0]["what"]
    machine("proc/self/limits", "Max locked memory         8388608              8388608              bytes\n")
    (little,) = judge(ladder, machine, code=0)["memlock"]
    assert little["what"].endswith("128 connections to other hosts have rings of 64 to 16 KiB, where 256 are wanted"), little
    assert "LimitMEMLOCK=64M" in little["advice"], little


@as_root
def test_a_device_that_only_root_may_open(ladder, machine):
    """As another user."""
    infiniband(machine)
    machine("dev/infiniband/uverbs0").chmod(0o600)
    for folder in (machine.root, *machine.root.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]
    found = judge(ladder, machine, before=user)
    assert any("uverbs0" in f["what"] and "group" in f["advice"] for f in found["rdma"]), found["rdma"]


@as_root
def test_capabilities(ladder):
    """Root without CAP_SYS_PTRACE, as in a container; another user."""
    found = examine(ladder, before=["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"])
    assert grades(found, "capabilities") == ["slow"]
    found = examine(ladder, before=["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"])
    assert grades(found, "capabilities") == ["note"]


@as_root
def test_namespaces(ladder, machine):
    """Of users without a map, with a small one, and of the network."""
    found = examine(ladder, code=1, before=["unshare", "--user"])
    assert grades(found, "user-namespace") == ["stop"]
    found = examine(ladder, before=["unshare", "--user", "--map-root-user"])
    assert grades(found, "user-namespace") == ["note"]
    for number, grade in (("1", []), ("2", ["note"])):
        for process, namespace in (("1", "1"), ("self", number)):
            folder = machine.root / "proc" / process / "ns"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "net").unlink(missing_ok=True)
            (folder / "net").symlink_to(f"net:[{namespace}]")
        assert grades(judge(ladder, machine), "net-namespace") == grade


@contextmanager
def sleeping(ladder, *before, library=True):
    """A program that does nothing; its process id. It has the library if wanted."""
    env = environment(**({"LD_PRELOAD": str(ladder.artifacts.dir / "libsdp.so")} if library else {}))
    program = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([*before, python(), "-c", program], stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGKILL)


@as_root
def test_two_processes_are_compared(ladder):
    """Of one network and user, of two networks, of two users."""
    with sleeping(ladder) as one, sleeping(ladder) as same, sleeping(ladder, "unshare", "--net") as elsewhere, \
            sleeping(ladder, "setpriv", "--reuid=4242", "--regid=4242", "--clear-groups") as other:
        found = examine(ladder, "--pid", one, "--pid", same)
        assert grades(found, "process") == ["ok", "ok"] and "ok" in grades(found, "net-namespace")
        assert grades(found, "users") == ["ok"]
        found = examine(ladder, "--pid", one, "--pid", elsewhere, code=1)
        assert "stop" in grades(found, "net-namespace")
        found = examine(ladder, "--pid", one, "--pid", other)
        assert grades(found, "users") == ["note"], "two users are served as one is"
        assert "one user id" not in found["users"][0]["advice"]


def test_a_process_without_the_library(ladder):
    """And one that is not there."""
    with sleeping(ladder, library=False) as pid:
        found = examine(ladder, "--pid", pid, code=1)
        assert grades(found, "process") == ["stop"]
    assert grades(examine(ladder, "--pid", pid, code=1), "process") == ["stop"]


@as_root
def test_set_id_static_musl_and_foreign_programs(ladder, tmp_path):
    """Programs that the loader keeps from the library."""
    plain = Path(shutil.copy("/bin/true", tmp_path / "plain"))
    assert grades(examine(ladder, plain), "set-id") == ["ok"]
    plain.chmod(0o4755)
    assert grades(examine(ladder, plain, code=1), "set-id") == ["stop"]
    plain.chmod(0o755)
    os.setxattr(plain, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    assert grades(examine(ladder, plain, code=1), "set-id") == ["stop"]
    assert grades(examine(ladder, shutil.which("busybox"), code=1), "libc-of-program") == ["stop"]
    image = Path("/bin/true").read_bytes()
    musl = tmp_path / "musl"
    musl.write_bytes(image.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-musl-x86_64.so.1\0\0\0"))
    foreign = tmp_path / "foreign"
    foreign.write_bytes(image[:18] + b"\x28\0" + image[20:])
    script = tmp_path / "script"
    script.write_text(f"#!{musl}\n", encoding="utf-8")
    for path, word in ((musl, "musl"), (foreign, "another machine"), (script, "musl")):
        path.chmod(0o755)
        found = examine(ladder, path, code=1)
        assert word in found["libc-of-program"][0]["what"]
    assert grades(examine(ladder, "no-such-command", code=1), "program") == ["stop"]


@pytest.mark.parametrize("how", ["-static", "-no-pie"])
def test_a_program_of_go(ladder, tmp_path, how):
    """However it is linked, it calls the kernel itself: advice to link it dynamically would be wrong."""
    source, program = tmp_path / "go.c", tmp_path / "go"
    source.write_text('__attribute__((section(".go.buildinfo"), used)) static const char built[16] = "go";\n'
                      "int main(void) { return 0; }\n", encoding="utf-8")
    subprocess.run(["cc", how, "-o", program, source], check=True)
    (finding,) = examine(ladder, program, code=1)["libc-of-program"]
    assert finding["grade"] == "stop" and "Go calls the kernel itself" in finding["what"]
    assert "dynamically" not in finding["what"] + finding["advice"]
    done = sdp(ladder, "run", "--require", "--", program)
    assert done.returncode == 123 and "Go program" in done.stderr, done.stderr


def test_files_of_earlier_stacks_are_named(ladder, machine):
    """Nothing reads them; where the same is now is said. What is not there is not."""
    assert "historic" not in judge(ladder, machine, code=0)
    machine("etc/sdp.conf", "match both *:*\n")
    machine("usr/local/topspin/etc/libsdp.conf", "match both *:*\n")
    machine("usr/lib64/libsdp.so.1")
    (machine.root / "usr/lib64/libsdp.so").symlink_to("libsdp.so.1")
    found = judge(ladder, machine, code=0)["historic"]
    assert [f["grade"] for f in found] == ["note", "note"]
    assert all("/etc/libsdp.conf" in f["advice"] and "not read" in f["what"] for f in found)
    (machine.root / "usr/lib64/libsdp.so").unlink()
    machine("usr/lib64/libsdp.so")
    assert "/usr/lib64/libsdp.so is no link" in judge(ladder, machine, code=0)["historic"][2]["what"]


def test_what_cannot_be_looked_at_is_an_error(ladder, tmp_path):
    """A folder that is not there, and ports that do not exist."""
    for bad in (tmp_path / "none", "/etc/passwd"):
        done = sdp(ladder, "doctor", "--sysroot", bad)
        assert done.returncode == 1 and not done.stdout and "--sysroot" in done.stderr
        assert "os error" not in done.stderr
    for bad in ("127.0.0.1:99999", "127.0.0.1:x", "[::1]:70000"):
        done = sdp(ladder, "doctor", "--peer", bad)
        assert done.returncode == 1 and "a port is a number" in done.stderr, done.stderr


def test_the_library_and_lists_of_it(ladder, machine):
    """Not found; named where it is not."""
    found = examine(ladder, code=1, env=environment(SDP_LIBRARY="/nonexistent/libsdp.so"))
    assert grades(found, "library") == ["stop"]
    machine("etc/ld.so.preload", "/usr/lib/libsdp.so.1\n")
    assert grades(judge(ladder, machine, code=1), "preload") == ["stop"]
    machine("usr/lib/libsdp.so.1")
    assert grades(judge(ladder, machine, code=0), "preload") == ["ok"]


def test_proc_that_hides(ladder, machine):
    """The tools see less, lanes do not."""
    machine("proc/self/mounts", "proc /proc proc rw,hidepid=invisible 0 0\n")
    assert grades(judge(ladder, machine, code=0), "proc") == ["note"]


def test_rules(ladder, machine):
    """Broken, unreadable, tcp for everything, tcp for one program."""
    machine("etc/libsdp.conf", "use sdp klient * *:*\n")
    found = judge(ladder, machine, code=1)
    assert grades(found, "rules") == ["slow"] and "line 1" in found["rules"][0]["what"]
    machine("etc/libsdp.conf", "use tcp client java *:*\nuse tcp server java *:*\n")
    assert grades(judge(ladder, machine, code=0), "rules") == ["ok"]
    assert "stop" in grades(judge(ladder, machine, "java", code=1), "rules")
    pipe = machine.root / "etc/libsdp.conf"
    pipe.unlink()
    os.mkfifo(pipe)
    assert grades(judge(ladder, machine, code=1), "rules") == ["slow"]


def test_tunables(ladder):
    """Values that cannot be, that stop lanes, that are for tests."""
    for env, grade in (
        ({"SDP_RECV_POLL": "soon"}, "slow"),
        ({"SDP_FABRICS": "none"}, "stop"),
        ({"SDP_TEST_LANE_FLIP": "3"}, "slow"),
    ):
        found = examine(ladder, code=1, env=environment(**env))
        assert grades(found, "tunables") == [grade]


def test_devices_are_shown_with_their_interface(ladder, machine):
    """As ibv_devinfo and ibdev2netdev did; and where there is none."""
    form = json.loads(sdp(ladder, "devices", "--json", "--sysroot", machine.root).stdout)
    assert form["devices"] == []
    assert "no RDMA device" in sdp(ladder, "devices", "--sysroot", machine.root).stdout
    infiniband(machine)
    text = sdp(ladder, "devices", "--sysroot", machine.root).stdout
    assert "mlx5_0 (CA, firmware 16.35.2000, board MT_0000000008)" in text
    assert "port 1: ACTIVE (LinkUp), InfiniBand, 100 Gb/sec (4X EDR) ==> ib0" in text
    machine("sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:506b:4b03:00a1:b2c3\n")
    machine("sys/class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n")
    form = json.loads(sdp(ladder, "devices", "--json", "--sysroot", machine.root).stdout)
    # Only the machine itself could open the device.
    assert form["devices"][0]["shared_receive_queue"] is None and "shared receive queue: not asked" in text, text
    (port,) = form["devices"][0]["ports"]
    assert port["interfaces"] == ["ib0"]
    assert port["gids"] == [{"index": 0, "gid": "fe80::506b:4b03:a1:b2c3", "kind": "", "interface": ""}]
    here = json.loads(sdp(ladder, "devices", "--json").stdout)
    assert "lo" in [i["name"] for i in here["interfaces"]]


def test_hostile_files_of_another_machine(ladder, machine):
    """Rubbish in every file: an answer, no crash, nothing for the terminal."""
    infiniband(machine)
    for path in list(machine.root.rglob("*")):
        if path.is_file():
            path.write_bytes(b"\x1b[2J\xff\0" * 50)
    for command in ("doctor", "devices"):
        done = subprocess.run(
            [ladder.artifacts.sdp, command, "--sysroot", machine.root], capture_output=True, check=False, timeout=60
        )
        assert done.returncode in (0, 1) and b"\x1b" not in done.stdout, done.stdout + done.stderr


def address(machine):
    """Gives the device one."""
    port = "sys/class/infiniband/mlx5_0/ports/1"
    machine(f"{port}/gids/0", "0000:0000:0000:0000:0000:ffff:0a09:0001\n")
    machine(f"{port}/gid_attrs/types/0", "RoCE v2\n")


def test_nfs_over_rdma_of_a_machine(ladder, machine):
    """Each thing that it needs: missing, there, and there with a price."""
    found = judge(ladder, machine, "--nfs", code=1)
    assert set(found) == {"nfs-device", "nfs-memory", "nfs-module", "nfs-listener", "nfs-mount"}, "of NFS alone"
    assert grades(found, "nfs-device") == ["stop"] and "rdma link add" in found["nfs-device"][0]["advice"]
    assert grades(found, "nfs-module") == ["note"] and "mounts by TCP only" in found["nfs-module"][0]["what"]
    assert "does not run" in found["nfs-listener"][0]["what"] and grades(found, "nfs-mount") == ["note"]

    infiniband(machine)
    found = judge(ladder, machine, "--nfs", code=1)
    assert "no IP address" in found["nfs-device"][0]["what"]
    address(machine)
    machine("lib/modules/6.1.0-13-amd64/modules.dep", "kernel/net/sunrpc/xprtrdma/rpcrdma.ko.xz: kernel/net/sunrpc/sunrpc.ko\n")
    machine("proc/fs/nfsd/portlist", "tcp 2049\ntcp 2049\n")
    found = judge(ladder, machine, "--nfs", code=0)
    assert found["nfs-device"][0]["what"] == "mlx5_0: 10.9.0.1 first"
    assert found["nfs-module"][0]["advice"] == "Before mount: modprobe rpcrdma."
    assert grades(found, "nfs-listener") == ["note"] and "echo rdma 20049" in found["nfs-listener"][0]["advice"]
    assert grades(found, "nfs-mount") == ["note"]

    machine("proc/modules", "rpcrdma 290816 0 - Live 0x0\n")
    machine("proc/fs/nfsd/portlist", "rdma 20050\nrdma 20050\ntcp 2049\n")
    found = judge(ladder, machine, "--nfs", code=0)
    assert grades(found, "nfs-module") == grades(found, "nfs-listener") == ["ok"]
    assert "mount -t nfs -o vers=4.2,proto=rdma,port=20050,hard 10.9.0.1:/PATH DIR" in found["nfs-mount"][0]["what"]

    for kilobytes, grade in ((4096, "stop"), (16384, "note"), (1 << 20, "ok")):
        machine("proc/self/limits", f"Max locked memory         {kilobytes << 10}               unlimited            bytes\n")
        assert grades(judge(ladder, machine, "--nfs", code=int(grade == "stop")), "nfs-memory") == [grade]

    machine("etc/exports", "# async\n/srv *(rw,sync,root_squash)\n")
    assert "nfs-exports" not in judge(ladder, machine, "--nfs")
    machine("etc/exports", "/srv *(rw,sync)\n/mount_share *(rw,async,insecure,no_root_squash)\n")
    whats = [f["what"] for f in judge(ladder, machine, "--nfs")["nfs-exports"]]
    assert len(whats) == 2 and "async" in whats[0] and "no_root_squash" in whats[1]


class Answers:
    """A server that answers each call with these words behind its XID."""

    def __init__(self, *words):
        self.words = words

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        return "127.0.0.1:%d" % self.listener.getsockname()[1]

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()

    def serve(self):
        """Until the listener ends."""
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    call = connection.recv(44, socket.MSG_WAITALL)
                    reply = call[4:8] + b"".join(word.to_bytes(4, "big") for word in (1, *self.words))
                    connection.sendall((len(reply) | 1 << 31).to_bytes(4, "big") + reply)


def test_an_nfs_server_is_asked(ladder):
    """By NULL: one that answers, one that is none, nobody."""
    with Answers(0, 0, 0, 0) as server:
        (finding,) = examine(ladder, "--nfs", server)["nfs-server"]
        assert finding["grade"] == "ok" and finding["what"].endswith("answers NULL, version 3 and 4")
    with Answers(0, 0, 0, 1) as server:
        (finding,) = examine(ladder, "--nfs", server, code=1)["nfs-server"]
        assert finding["grade"] == "stop" and "no such program" in finding["what"]
    (finding,) = examine(ladder, "--nfs", server, code=1)["nfs-server"]
    assert finding["grade"] == "stop" and "no NFS server answers" in finding["what"]
    assert sdp(ladder, "doctor", "--nfs", "no.such.host.invalid").returncode == 1
