"""A root of its own over this machine's: what is written there is on a memory file system that goes with it.

A process in a mount namespace holds it; programs enter that namespace and change their root. A root that is *apart* has its own
processes and network as well: what was started there ends with it.
"""

import os
import signal
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
LIMIT_S = 60
PACKING_LIMIT_S = 120
SCRIPT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1/root"
if [ "$2" = apart ]; then
    mount -t proc none "$1/root/proc"
    ip link set lo up
else
    mount --rbind /proc "$1/root/proc"
fi
mount --rbind /dev "$1/root/dev"
mount -t tmpfs -o mode=1777 none "$1/root/tmp"
if [ "$2" = apart ]; then
    # Its root, not only that of its processes: such a process may have namespaces of users.
    mkdir "$1/root/.before"
    cd "$1/root"
    pivot_root . .before
    umount -l /.before
    rmdir /.before
fi
echo ready
# As init of its processes it has no use for their ends.
trap '' CHLD
exec sleep 600
"""


def make(folder, **env):
    """Makes all packages of what is built; what they are called and hold."""
    done = subprocess.run(
        ["cargo", "xtask", "package", "--no-build", "--output", folder],
        cwd=TOP, env={**os.environ, **env}, capture_output=True, text=True, timeout=PACKING_LIMIT_S, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not made" not in done.stdout, done.stdout
    return {path.name: path for path in Path(folder).iterdir()}


def one(packages, ending):
    """The package whose name ends so."""
    (path,) = (path for name, path in packages.items() if name.endswith(ending))
    return path


class Root:
    """One root."""

    def __init__(self, scratch, is_apart=False):
        self.base = Path(scratch)
        self.is_apart = is_apart
        apart = ["--net", "--pid", "--fork", "--kill-child"] if is_apart else []
        kind = "apart" if is_apart else "shared"
        command = ["unshare", "--mount", *apart, "sh", "-c", SCRIPT, "sh", str(self.base), kind]
        # pylint: disable-next=consider-using-with
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n", "no overlay file system to be had"
        # With it, each run of dpkg makes the index of all manual pages anew.
        self.path("/var/lib/man-db/auto-update").unlink(missing_ok=True)

    def path(self, name):
        """A file of the root, as this process can open it."""
        inside = "" if self.is_apart else f"{self.base}/root"
        return Path(f"/proc/{self.holder.pid}/root{inside}") / str(name).lstrip("/")

    def words(self, command, env=None):
        """The whole command that runs a program in it."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/", **(env or {})}
        inside = ["nsenter", f"--target={self.holder.pid}", "--mount"]
        if self.is_apart:
            inside += ["--net", f"--pid=/proc/{self.holder.pid}/ns/pid_for_children"]
        else:
            inside += ["chroot", f"{self.base}/root"]
        return [*inside, "/usr/bin/env", "-i", *(f"{k}={v}" for k, v in environment.items()), *map(str, command)]

    def start(self, *command, env=None, **options):
        """Starts a program in it, which the caller ends, or which ends with a root that is apart."""
        return subprocess.Popen(self.words(command, env), text=True, **options)

    def run(self, *command, env=None, check=True, text_in=None):
        """Runs a program in it; its input and output are text."""
        source = {"input": text_in} if text_in is not None else {"stdin": subprocess.DEVNULL}
        done = subprocess.run(
            self.words(command, env), capture_output=True, text=True, timeout=LIMIT_S, check=False, **source,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def written(self):
        """What was written or removed so far: paths from the root's top, no folders."""
        upper = Path(f"/proc/{self.holder.pid}/root{self.base}/upper")
        found = set()
        for folder, _, files in os.walk(upper):
            found |= {str(Path(folder, name).relative_to(upper)) for name in files}
        return found

    def close(self):
        """Ends it."""
        self.holder.send_signal(signal.SIGKILL)
        self.holder.wait()
        self.holder.stdout.close()
