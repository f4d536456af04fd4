"""A systemd as process 1 of a container over this machine's files.

What is written there is on a memory file system that goes with it; processes, network, control groups and mounts are its own. It
has not the capabilities with which it could change the machine's kernel: modules, clock, raw devices. No unit is started but those
that systemd itself needs, and those that a test asks for.
"""

import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from support.procs import wait_until

LIMIT_S = 120
LIBRARY = "/usr/lib/x86_64-linux-gnu/libsdp.so.1"
NAMESPACES = ("--mount", "--net", "--uts", "--ipc", "--cgroup")
# First the control group, in which the second part has a namespace.
SCRIPT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$1"
mkdir "$1/groups" "$1/upper" "$1/work" "$1/root"
mount -t cgroup2 none "$1/groups"
mkdir "$1/groups/$2"
echo $$ >"$1/groups/$2/cgroup.procs"
exec unshare --mount --net --uts --ipc --cgroup --pid --fork --kill-child sh -c "$4" sh "$1" "$3"
"""
INIT = r"""
set -e
[ -z "$2" ] || cp -a "$2/." "$1/upper/"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
for node in null zero full random urandom tty; do
    : >dev/$node
    mount --bind /dev/$node dev/$node
done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for place in dev/shm tmp var/tmp; do mount -t tmpfs -o mode=1777 tmp $place; done
mount -t tmpfs -o mode=755 run run
mkdir -p usr/local/lib/systemd/system
rm -rf etc/systemd/system/*.wants etc/systemd/system/*.requires
: >etc/fstab
echo 0123456789abcdef0123456789abcdef >etc/machine-id
printf '[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\n' >etc/systemd/system/tests.target
ip link set lo up
mkdir .before
pivot_root . .before
mount -o bind,remount,ro /proc/sys 2>/dev/null || { mount --bind /proc/sys /proc/sys; mount -o bind,remount,ro /proc/sys; }
umount -l /.before
rmdir /.before
without=-sys_module,-sys_rawio,-sys_time,-sys_boot,-syslog,-mac_admin,-mac_override,-wake_alarm,-block_suspend
exec env -i container=tests PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    setpriv --bounding-set=$without --inh-caps=-all \
    /lib/systemd/systemd --unit=tests.target --log-target=console --show-status=no
"""
REMOVE = 'mount -t cgroup2 none "$1" && find "$1/$2" -depth -type d -exec rmdir {} +'


class NoSystemd(Exception):
    """It cannot run here; the text says why."""


class Booted:
    """One such container. `layer`: a folder whose files lie over this machine's."""

    def __init__(self, artifacts, layer=""):
        self.base = Path(tempfile.mkdtemp(prefix="sdp-booted-"))
        self.base.chmod(0o755)
        self.group = f"sdp-booted-{self.base.name[-8:]}"
        self.log = Path(tempfile.mkstemp(prefix="sdp-booted-", suffix=".log")[1])
        command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", self.base, self.group, layer, INIT]
        with open(self.log, "wb") as log:
            # pylint: disable-next=consider-using-with
            self.holder = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait_up()
            for source, place in (("libsdp.so", LIBRARY), ("sdp", "/usr/bin/sdp")):
                self.run("cp", "/dev/stdin", place, source=artifacts.dir / source)
                self.run("chmod", "755", place)
            self.run("ln", "-s", Path(LIBRARY).name, LIBRARY.removesuffix(".1"))
        except BaseException:
            self.close()
            raise

    def _wait_up(self):
        def is_up():
            if self.holder.poll() is not None:
                raise NoSystemd(self.log.read_text(encoding="utf-8", errors="replace")[-600:])
            done = self.run("systemctl", "is-active", "tests.target", check=False)
            return done.stdout.strip() == "active"

        wait_until(is_up, "the container's systemd", LIMIT_S)

    def words(self, command, user=None):
        """The whole command that runs a program in it, as root unless a user is named."""
        namespaces = Path(f"/proc/{self.holder.pid}/ns")
        inside = ["nsenter", f"--target={self.holder.pid}", *NAMESPACES, f"--pid={namespaces}/pid_for_children"]
        if user:
            inside += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/tmp"]
        return [*inside, "env", "-C", "/tmp", "-i", *environment, *map(str, command)]

    def run(self, *command, user=None, check=True, text_in=None, source=None):
        """Runs a program in it to its end; its input is a text, a file, or nothing."""
        with open(source or "/dev/null", "rb") as file:
            given = {"input": text_in} if text_in is not None else {"stdin": file}
            done = subprocess.run(
                self.words(command, user), capture_output=True, text=True, timeout=LIMIT_S, check=False, **given)
        said = f"{shlex.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert not check or done.returncode == 0, said
        return done

    def shell(self, script, **options):
        """Runs a script in it."""
        return self.run("sh", "-e", "-c", script, **options)

    def write(self, name, text):
        """A file in it."""
        self.run("sh", "-e", "-c", 'mkdir -p "${1%/*}"; cat >"$1"', "sh", name, text_in=text)

    def read(self, name):
        """The text of a file in it."""
        return self.run("cat", name).stdout

    def why(self, unit):
        """What systemd and the unit have said, for a failure."""
        status = self.run("systemctl", "status", "--no-pager", "--full", unit, check=False).stdout
        return status + self.run("journalctl", "--no-pager", "-n", "40", "-u", unit, check=False).stdout

    def start(self, unit):
        """Starts it anew, as an administrator who has changed its files does."""
        done = self.shell(f"systemctl daemon-reload && systemctl restart {unit}", check=False)
        assert done.returncode == 0, done.stderr + self.why(unit)

    def close(self):
        """Ends it."""
        self.holder.send_signal(signal.SIGKILL)
        self.holder.wait()
        # Its processes end with their process 1, and their control groups can go then.
        place = tempfile.mkdtemp(prefix="sdp-booted-")
        remove = ["unshare", "--mount", "sh", "-c", REMOVE, "sh", place, self.group]

        def is_gone():
            return subprocess.run(remove, capture_output=True, check=False, timeout=LIMIT_S).returncode == 0

        wait_until(is_gone, "the end of its processes", LIMIT_S)
        for folder in (place, self.base):
            shutil.rmtree(folder)
        self.log.unlink()
