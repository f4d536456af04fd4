"""Guests: whole machines in QEMU, with this machine's files as their root.

A guest reads this machine's files at their own paths; what it writes is lost. A script in it, the
agent, waits in a folder that both sides see for commands, runs each beside the others, and leaves
output and status there. So one boot serves many tests, and a test needs no clock to order what
happens in two guests: it starts, waits for what it needs, and starts the next.

A pair is joined by a wire made of two Unix datagram sockets. Nothing of the network here is used.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from support.limits import now

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# `kvm` where that works; that `/dev/kvm` can be opened does not show it: inside another guest it may hang.
ACCELERATOR = os.environ.get("SDP_MACHINES_ACCELERATOR", "tcg")
# A loaded machine without KVM may need half a minute.
BOOT_S = 150
ADDRESSES = {"a": "10.9.0.1", "b": "10.9.0.2"}
CONSOLE_TAIL = 3000

AGENT = """
export PATH=%(path)s HOME=/root LC_ALL=C.UTF-8
cd /
hostname %(name)s
ip link set lo up
chmod 1777 /tmp
ulimit -l unlimited
{
%(network)s
} >/control/setup.log 2>&1 || { cp /control/setup.log /dev/console; busybox poweroff -f; }
: >/control/up
# Nobody writes to it: a pause without a process, which is dear where the processor is emulated.
mkfifo /tmp/agent
exec 3<>/tmp/agent
n=1
while [ ! -e /control/off ]; do
    if [ -e /control/$n.sh ]; then
        (
            setsid -w bash /control/$n.sh </dev/null 3>&- >/control/$n.out 2>/control/$n.err
            echo $? >/control/$n.rc
            mv /control/$n.rc /control/$n.status
        ) &
        n=$((n + 1))
    else
        read -r -t 0.05 <&3
    fi
done
busybox poweroff -f
"""

WIRE = """
modprobe -a virtio_net
ip link set eth0 mtu 4200
ip addr add %(address)s/24 dev eth0
ip addr add fd00:9::%(last)s/64 dev eth0 nodad
ip link set eth0 up
"""

DEVICE = """
rdma link add rxe0 type rxe netdev %(interface)s
n=0
until grep -qs ACTIVE /sys/class/infiniband/rxe0/ports/1/state \\
        && grep -qs ffff:0a09 /sys/class/infiniband/rxe0/ports/1/gids/*; do
    n=$((n + 1)); [ $n -lt 200 ] || exit 1; sleep 0.05
done
"""
SOFT_ROCE = "\nmodprobe -a rdma_rxe rdma_ucm ib_uverbs" + DEVICE

DUMMY = """
modprobe dummy
ip link add dummy0 type dummy
ip addr add 10.9.0.1/24 dev dummy0
ip link set dummy0 up
"""


class GuestDied(Exception):
    """The guest ended, or did not come up."""


class Done:
    """A command that has ended."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def __repr__(self):
        return f"status {self.status}\n{self.out.decode(errors='replace')}\n{self.err.decode(errors='replace')}"

    @property
    def text(self):
        """Standard output as text."""
        return self.out.decode(errors="replace")


class Command:
    """A command in a guest, running or ended."""

    def __init__(self, guest, number):
        self.guest, self.number = guest, number

    def file(self, kind):
        """A file of the command on this side."""
        return self.guest.control / f"{self.number}.{kind}"

    def is_over(self):
        """Whether it has ended."""
        return self.file("status").exists()

    def wait(self, limit_s=60):
        """Waits for the end."""
        self.guest.wait_for(self.is_over, limit_s, f"{self.file('sh').read_text()!r}")
        status = int(self.file("status").read_text() or -1)
        return Done(status, self.file("out").read_bytes(), self.file("err").read_bytes())


class Guest:
    """One machine."""

    def __init__(self, kernel, name="a", wire=None, soft_roce=True, memory_mb=768, layer=None):
        self.name = name
        self.address = ADDRESSES[name]
        self.dir = Path(tempfile.mkdtemp(prefix="sdp-guest-"))
        self.control = self.dir / "control"
        self.control.mkdir(mode=0o1777)
        self.control.chmod(0o1777)
        self._commands = 0
        network = WIRE if wire else DUMMY
        if soft_roce:
            network += SOFT_ROCE
        words = {"address": self.address, "last": self.address[-1], "interface": "eth0" if wire else "dummy0"}
        agent = AGENT % {"path": PATH, "name": name, "network": "set -e" + network % words + "set +e"}
        (self.control / "agent").write_text(agent, encoding="utf-8")
        self.began = time.monotonic()
        self.boot_s = None
        self._qemu = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--"] + self.machine(kernel, wire, memory_mb, layer),
            stdin=subprocess.DEVNULL,
            stdout=open(self.dir / "qemu.log", "wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def machine(self, kernel, wire, memory_mb, layer):
        """QEMU's command line. The HPET is the clock because it needs no calibration, which a busy machine spoils. A layer is a
        folder of programs that lies over this machine's files."""
        line = "console=ttyS0 quiet panic=-1 oops=panic clocksource=hpet nowatchdog mitigations=off net.ifnames=0 "
        line += "random.trust_cpu=on audit=0 apparmor=0"
        line += " sdp.layer" if layer else ""
        command = ["qemu-system-x86_64", "-machine", "q35", "-accel", ACCELERATOR, "-cpu", "max,-arch-capabilities"]
        command += ["-smp", "1", "-m", str(memory_mb), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        command += ["-kernel", kernel.image, "-initrd", kernel.initrd, "-append", line]
        command += ["-serial", f"file:{self.dir}/console", "-device", "virtio-rng-pci"]
        for tag, folder, access in (
            ("host", "/", ",readonly=on"),
            ("modules", kernel.modules, ",readonly=on"),
            ("control", self.control, ""),
            *([("layer", layer, ",readonly=on")] if layer else []),
        ):
            command += ["-fsdev", f"local,id={tag},path={folder},security_model=none,multidevs=remap{access}"]
            command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        if wire:
            ours, theirs = (wire / name for name in (self.name, "b" if self.name == "a" else "a"))
            ends = f"local.type=unix,local.path={ours},remote.type=unix,remote.path={theirs}"
            command += ["-netdev", f"dgram,id=wire,{ends}"]
            mac = f"52:54:00:00:00:0{self.address[-1]}"
            command += ["-device", f"virtio-net-pci,netdev=wire,mac={mac},romfile="]
        return [str(word) for word in command]

    @property
    def console(self):
        """The end of what the kernel said."""
        text = b"".join(f.read_bytes() for f in (self.dir / "qemu.log", self.dir / "console") if f.exists())
        return text[-CONSOLE_TAIL:].decode(errors="replace")

    def wait_for(self, condition, limit_s, what):
        """Waits until something holds; a failure if the guest ends first, or after the limit."""
        end = now() + limit_s
        while not condition():
            if self._qemu.poll() is not None and not condition():
                raise GuestDied(f"guest {self.name} ended (QEMU: {self._qemu.returncode}) during {what}\n{self.console}")
            if now() > end:
                raise TimeoutError(f"guest {self.name}: past {limit_s} s: {what}\n{self.console}")
            time.sleep(0.02)

    def wait_up(self):
        """Waits until the agent takes commands."""
        self.wait_for((self.control / "up").exists, BOOT_S, "its boot")
        self.boot_s = time.monotonic() - self.began

    def start(self, command, user=None):
        """Starts a command: a shell script, or a list of words. As root unless a user is named."""
        if not isinstance(command, str):
            command = shlex.join(map(str, command))
        if user:
            command = f"exec setpriv --reuid {user} --regid $(id -g {user}) --clear-groups bash -c {shlex.quote(command)}"
        self._commands += 1
        new = self.control / "new"
        new.write_text(command + "\n", encoding="utf-8")
        new.rename(self.control / f"{self._commands}.sh")
        return Command(self, self._commands)

    def run(self, command, limit_s=60, ok=(0,), user=None):
        """Runs a command to its end; a failure if its exit status is none of `ok`."""
        done = self.start(command, user).wait(limit_s)
        assert ok is None or done.status in ok, f"guest {self.name}: {command}: {done}"
        return done

    def wait_listening(self, port, limit_s=60):
        """Waits until somebody listens on a TCP port."""
        script = f"for i in $(seq {limit_s * 10}); do [ -z \"$(ss -Htln 'sport = :{port}')\" ] || exit 0; sleep 0.1; done; exit 1"
        self.run(script, 2 * limit_s)

    def add_device(self):
        """Makes the RDMA device anew that was taken away, and waits until it can be used."""
        self.run(DEVICE % {"interface": "eth0"})

    def kill(self):
        """Pulls the plug."""
        self._qemu.kill()
        self._qemu.wait()

    def close(self):
        """Ends the guest and removes what it wrote."""
        (self.control / "off").touch()
        try:
            self._qemu.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


class Pair:
    """Two guests on one wire: `a` and `b`."""

    def __init__(self, kernel, **options):
        self.wire = Path(tempfile.mkdtemp(prefix="sdp-wire-"))
        self.a = Guest(kernel, "a", self.wire, **options)
        self.b = Guest(kernel, "b", self.wire, **options)

    def wait_up(self):
        """Waits for both."""
        for guest in (self.a, self.b):
            guest.wait_up()

    def close(self):
        """Ends both."""
        for guest in (self.a, self.b):
            (guest.control / "off").touch()
        for guest in (self.a, self.b):
            guest.close()
        shutil.rmtree(self.wire, ignore_errors=True)
