"""Network namespaces that are like a container host: `host` has the bridge, `a` and `b` are behind veth pairs.

Container `b` has the address 10.77.0.3 and fd77::3. It is also asked for by the service address 10.77.9.9: port 80 is translated
to its port 7000 (destination), port 81 to the same and the client's address is hidden, too (masquerade). Port 82 of b's own
address is redirected to 7000 inside b. Nothing outside these namespaces is changed.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .procs import wait_until
from .space import Space

SERVED = 7000
RULES = """
table ip cp {
  chain pre { type nat hook prerouting priority -100; ip daddr 10.77.9.9 tcp dport 80-81 dnat to 10.77.0.3:7000; }
  chain out { type nat hook output priority -100; ip daddr 10.77.9.9 tcp dport 80-81 dnat to 10.77.0.3:7000; }
  chain post { type nat hook postrouting priority 100;
    ip daddr 10.77.0.3 tcp dport 7000 ct original proto-dst 81 masquerade; }
}
"""
REDIRECT = """
table inet cp {
  chain pre { type nat hook prerouting priority -100; tcp dport 82 redirect to :7000; }
}
"""
# The way to the server, and the address and port that a client asks for.
WAYS = {
    "direct": ("10.77.0.3", SERVED),
    "dnat": ("10.77.9.9", 80),
    "masquerade": ("10.77.9.9", 81),
    "redirect": ("10.77.0.3", 82),
    "v6": ("fd77::3", SERVED),
    "mapped": ("::ffff:10.77.0.3", SERVED),
}


class Namespace(Space):
    """A network namespace in which commands run."""

    def run(self, *argv, text=None):
        """A command in it."""
        subprocess.run(
            self.prefix() + [str(word) for word in argv], input=text, text=True, check=True,
            capture_output=True,
        )

    def until_listening(self, port):
        """Waits until a socket listens on the port."""
        wait_until(lambda: self.is_listening(port), f"port {port}", 40)


class Containers:
    """Two containers of one host, and a directory that both see."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="sdp-meet-"))
        self.directory.chmod(0o1733)
        self.host, self.a, self.b = (Namespace() for _ in range(3))
        host = self.host
        host.run("ip", "link", "add", "br0", "type", "bridge")
        host.run("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
        host.run("ip", "addr", "add", "fd77::1/64", "dev", "br0", "nodad")
        host.run("ip", "link", "set", "br0", "up")
        for name, space, number in (("va", self.a, 2), ("vb", self.b, 3)):
            host.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0",
                     "netns", space.holder.pid)
            host.run("ip", "link", "set", name, "master", "br0", "up")
            space.run("ip", "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            space.run("ip", "addr", "add", f"fd77::{number}/64", "dev", "eth0", "nodad")
            space.run("ip", "link", "set", "eth0", "up")
            space.run("ip", "route", "add", "default", "via", "10.77.0.1")
        host.run("ip", "route", "add", "10.77.9.9", "dev", "br0")
        for name in ("ip_forward", "conf/all/send_redirects"):
            value = "1" if name == "ip_forward" else "0"
            host.run("sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}")
        self.translates = self._load(host, RULES) and self._load(self.b, REDIRECT)

    @staticmethod
    def _load(space, rules):
        if not shutil.which("nft"):
            return False
        try:
            space.run("nft", "-f", "-", text=rules)
        except subprocess.CalledProcessError:
            return False
        return True

    @staticmethod
    def may_be():
        """True if such namespaces can be made here."""
        return Space.may_be_private()

    def names(self):
        """What is in the directory."""
        return sorted(os.listdir(self.directory))

    def close(self):
        """Gives all of it up."""
        for space in (self.a, self.b, self.host):
            space.close()
        shutil.rmtree(self.directory, ignore_errors=True)
