"""A root of its own over this machine's: what is written there is on a memory file system that goes with it.

A process in a mount namespace holds it; programs enter that namespace and change their root.
"""

import os
import signal
import subprocess
from pathlib import Path

LIMIT_S = 60
SCRIPT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1/root"
mount --rbind /proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs -o mode=1777 none "$1/root/tmp"
echo ready
exec sleep 600
"""


class Root:
    """One root."""

    def __init__(self, scratch):
        self.base = Path(scratch)
        command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(self.base)]
        # pylint: disable-next=consider-using-with
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n", "no overlay file system to be had"
        # With it, each run of dpkg makes the index of all manual pages anew.
        self.path("/var/lib/man-db/auto-update").unlink(missing_ok=True)

    def path(self, name):
        """A file of the root, as this process can open it."""
        return Path(f"/proc/{self.holder.pid}/root{self.base}/root") / str(name).lstrip("/")

    def run(self, *command, env=None, check=True):
        """Runs a program in it; its output is text."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/", **(env or {})}
        inside = ["nsenter", f"--target={self.holder.pid}", "--mount", "chroot", f"{self.base}/root"]
        done = subprocess.run(
            [*inside, "/usr/bin/env", "-i", *(f"{k}={v}" for k, v in environment.items()), *map(str, command)],
            capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
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
