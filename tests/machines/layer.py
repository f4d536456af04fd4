"""Programs that only guests use: Debian packages, fetched once by apt and unpacked, laid over the guest's root, never installed.

An installed package `nfs-kernel-server` would start a server on this machine.
"""

import fcntl
import re
import shutil
import subprocess

from machines.kernel import NoGuests, cache, run


def plan(packages):
    """What installing them would add to this machine, with versions."""
    words = ["apt-get", "-s", "-qq", "--no-install-recommends", "install", *packages]
    text = run(*words)
    found = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", text, re.M)
    return [f"{name}={version}" for name, version in found]


def unpack(wanted, new):
    """Unpacks packages into a folder whose layout is that of the host: `/bin`, `/lib` and `/sbin` are links."""
    (new / "debs").mkdir(parents=True)
    root = new / "root"
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    if wanted:
        run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *wanted, cwd=new / "debs")
    for deb in sorted((new / "debs").glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as files:
            command = ["tar", "-x", "-C", root, "--keep-directory-symlink", "--no-same-owner", "--exclude=./usr/share/doc"]
            done = subprocess.run([*command, "--exclude=./usr/share/man"], stdin=files.stdout, check=False)
        if done.returncode or files.returncode:
            raise NoGuests(f"{deb.name} cannot be unpacked")
    shutil.rmtree(new / "debs")


def prepare_layer(name, packages):
    """Folder of the unpacked packages, made first if it is not there or lacks something."""
    folder = cache() / f"layer-{name}"
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            wanted = plan(packages)
        except NoGuests:
            # Without lists of packages the folder is used as it is.
            if folder.exists():
                return folder / "root"
            subprocess.run(["apt-get", "-qq", "update"], check=False, timeout=300)
            wanted = plan(packages)
        known = folder / "plan"
        if not known.exists() or set(wanted) - set(known.read_text(encoding="utf-8").split()):
            new = cache() / "layer-new"
            shutil.rmtree(new, ignore_errors=True)
            unpack(wanted, new)
            (new / "plan").write_text("\n".join(wanted), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
    return folder / "root"
