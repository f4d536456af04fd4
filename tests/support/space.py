"""A private network namespace for a scenario.

In it ports never collide, and the loopback device counts nothing but the scenario's own packets:
that is the kernel's own witness that payload did not cross TCP. Without the privilege to make one
the tests run in the host's namespace and only that witness is missing.
"""

import os
import shutil
import socket
import subprocess

from .procs import Program, wait_until


class Space:
    """A network namespace with its loopback device up, or the host's own."""

    def __init__(self, private=True):
        self.holder = None
        if private:
            self.holder = subprocess.Popen(
                ["unshare", "--net", "setpriv", "--pdeathsig", "KILL"]
                + ["sh", "-c", "ip link set lo up && echo up && exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            Program.running[self.holder.pid] = self.holder
            if self.holder.stdout.readline() != b"up\n":
                raise RuntimeError("no private network namespace")
        self._next_port = 17000

    @staticmethod
    def may_be_private():
        """True if a namespace can be made here."""
        if os.geteuid() != 0 or not shutil.which("ip"):
            return False
        return subprocess.run(["unshare", "--net", "true"], check=False).returncode == 0

    @property
    def is_private(self):
        """True if only the scenario's own packets are seen."""
        return self.holder is not None

    def prefix(self):
        """Words in front of a command that make it run in the namespace, with the same pid."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"] if self.holder else []

    def _file(self, name):
        pid = self.holder.pid if self.holder else "self"
        with open(f"/proc/{pid}/net/{name}", encoding="ascii") as f:
            return f.read()

    def port(self):
        """A port that nobody listens on."""
        if self.holder:
            self._next_port += 1
            return self._next_port
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def is_listening(self, port):
        """True if a TCP socket listens on the port; no connection is made."""
        listen = "0A"
        for table in ("tcp", "tcp6"):
            try:
                lines = self._file(table).splitlines()[1:]
            except FileNotFoundError:
                continue
            for line in lines:
                fields = line.split()
                if fields[3] == listen and int(fields[1].rpartition(":")[2], 16) == port:
                    return True
        return False

    def wait_listening(self, port, program, limit_s=40):
        """Waits until the program listens; a failure if it ends before."""

        def ready():
            if not program.is_running():
                raise AssertionError(f"{program.argv} ended: {program.process.returncode}")
            return self.is_listening(port)

        wait_until(ready, f"port {port} of {program.argv}", limit_s)

    def loopback_bytes(self):
        """Bytes the loopback device has carried."""
        for line in self._file("dev").splitlines():
            name, _, figures = line.partition(":")
            if name.strip() == "lo":
                return int(figures.split()[0])
        raise AssertionError("no loopback device")

    def close(self):
        """Gives the namespace up; it goes when its last process has ended."""
        if self.holder:
            self.holder.stdin.close()
            self.holder.stdout.close()
            self.holder.wait(10)
            Program.running.pop(self.holder.pid, None)
