"""A kernel for the guests: Debian's package, fetched once by apt and unpacked, never installed."""

import fcntl
import hashlib
import lzma
import os
import shutil
import struct
import subprocess
from pathlib import Path

# What process 1 needs before it can reach any other module.
EARLY = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
# Raised when what is made of the package changes.
LAYOUT = "1"
XZ = b"\xfd7zXZ\x00"
# Of the boot protocol: sectors of the set-up part, place and length of the packed kernel.
SETUP_SECTORS, PAYLOAD = 0x1F1, 0x248

INIT = """#!/bin/busybox sh
b=/bin/busybox
fail() { $b echo "init: $*"; $b poweroff -f; }
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r m; do $b insmod "/early/$m" || fail "module $m"; done </early/order
over9p() { $b mkdir -p "$2"; $b mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2" || fail "share $1"; }
over9p host /host ro,cache=loose
$b mkdir -p /own /new
$b mount -t tmpfs -o mode=755 own /own
$b mkdir /own/upper /own/work
lower=/host
if $b grep -q sdp.layer /proc/cmdline; then over9p layer /layer ro,cache=loose; lower=/layer:/host; fi
$b mount -t overlay -o lowerdir=$lower,upperdir=/own/upper,workdir=/own/work root /new || fail overlay
over9p control /new/control cache=none
over9p modules /new/lib/modules/$($b uname -r) ro,cache=loose
for f in proc sys dev; do $b mkdir -p /new/$f; $b mount -o move /$f /new/$f; done
$b mkdir -p /new/dev/shm /new/dev/pts
$b mount -t tmpfs -o mode=1777 shm /new/dev/shm
$b mount -t devpts -o gid=5,mode=620,ptmxmode=666 pts /new/dev/pts
$b mount -t tmpfs -o mode=755 run /new/run
$b mount -t tmpfs -o mode=1777 tmp /new/var/tmp
$b ln -sfn /proc/self/fd /new/dev/fd
exec $b switch_root /new /bin/bash /control/agent
"""


class NoGuests(Exception):
    """Guests cannot run here; the text says why."""


def cache():
    """Where the kernel is kept: 460 MB, nearly all of it modules."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sockets-direct" / "machines"


def run(*command, **options):
    """Output of a command that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)
    if done.returncode:
        raise NoGuests(f"{' '.join(map(str, command))}: {done.stderr.strip()[-300:]}")
    return done.stdout


def package():
    """Name of the kernel package that this distribution has now."""
    for attempt in (1, 2):
        lines = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True,
                               check=False).stdout.splitlines()
        names = [line.split()[-1] for line in lines if "Depends:" in line]
        if names:
            return names[0]
        if attempt == 1 and os.geteuid() == 0:
            subprocess.run(["apt-get", "-qq", "update"], check=False, timeout=300)
    raise NoGuests("apt knows no package linux-image-amd64")


def unpack_image(image):
    """The ELF file inside a kernel image: QEMU enters it directly, so that no emulated processor has to unpack it."""
    data = image.read_bytes()
    start, length = struct.unpack_from("<II", data, PAYLOAD)
    start += 512 * ((data[SETUP_SECTORS] or 4) + 1)
    if not data[start:].startswith(XZ):
        raise NoGuests(f"{image.name}: not packed with xz")
    return lzma.LZMADecompressor().decompress(data[start : start + length])


def member(name, mode, content=b""):
    """One member of an archive of the form newc."""
    raw = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + raw
    pad = lambda part: part + bytes(-len(part) % 4)
    return pad(head) + pad(content)


def early_modules(root, release):
    """The modules that process 1 inserts, in order: names and contents."""
    found = {}
    for name in EARLY:
        lines = run("modprobe", "-d", root, "-S", release, "--show-depends", name).splitlines()
        for path in (Path(line.split()[1]) for line in lines if line.startswith("insmod ")):
            content = path.read_bytes()
            found[path.name.removesuffix(".xz")] = lzma.decompress(content) if path.suffix == ".xz" else content
    return found


def initrd(root, release):
    """The first root: a static busybox, the early modules, and the script above."""
    folders = "bin early proc sys dev".split()
    parts = [member(folder, 0o040755) for folder in folders]
    parts.append(member("bin/busybox", 0o100755, Path(shutil.which("busybox")).read_bytes()))
    parts.append(member("init", 0o100755, INIT.encode()))
    modules = early_modules(root, release)
    parts += [member(f"early/{name}", 0o100644, content) for name, content in modules.items()]
    parts.append(member("early/order", 0o100644, "".join(f"{name}\n" for name in modules).encode()))
    parts.append(member("TRAILER!!!", 0))
    return b"".join(parts)


def fetch(new):
    """Fetches the package and makes everything in a new folder."""
    name = package()
    run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name, cwd=new)
    (deb,) = new.glob("*.deb")
    run("dpkg-deb", "-x", deb, new)
    deb.unlink()
    (modules,) = (new / "lib/modules").iterdir()
    release = modules.name
    run("depmod", "-b", new, release)
    (new / "kernel").write_bytes(unpack_image(new / f"boot/vmlinuz-{release}"))
    shutil.rmtree(new / "boot")
    shutil.rmtree(new / "usr", ignore_errors=True)
    (new / "release").write_text(release, encoding="utf-8")
    (new / "layout").write_text(LAYOUT, encoding="utf-8")


class Kernel:
    """Paths of what a guest is started from."""

    def __init__(self, root):
        self.image = root / "kernel"
        self.initrd = None
        self.release = (root / "release").read_text(encoding="utf-8")
        self.modules = root / "lib/modules" / self.release


def prepare():
    """The kernel, fetched first if it is not there. Processes that come together wait for one."""
    if os.uname().machine != "x86_64":
        raise NoGuests(f"no guests on {os.uname().machine}")
    missing = [p for p in ("qemu-system-x86_64", "busybox", "depmod", "dpkg-deb", "apt-get") if not shutil.which(p)]
    if missing:
        raise NoGuests(f"not installed: {', '.join(missing)}")
    cache().mkdir(parents=True, exist_ok=True)
    root = cache() / "kernel"
    with open(cache() / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        layout = root / "layout"
        if not layout.exists() or layout.read_text(encoding="utf-8") != LAYOUT:
            new = cache() / "new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            fetch(new)
            shutil.rmtree(root, ignore_errors=True)
            new.rename(root)
        kernel = Kernel(root)
        content = initrd(root, kernel.release)
        # By its content: other trees of this project may make another one.
        kernel.initrd = root / f"initrd-{hashlib.sha256(content).hexdigest()[:16]}"
        if not kernel.initrd.exists():
            new = cache() / "initrd.new"
            new.write_bytes(content)
            new.rename(kernel.initrd)
    return kernel
