"""What an sshd of a test's own needs: keys in a folder of its own, and options for both sides.

Used by the test of sshd and by the benchmark of scp. It refuses to touch the user's or the machine's keys.
"""

import os
import shutil
import subprocess
from pathlib import Path

SERVER = {
    "ListenAddress": "127.0.0.1",
    "PidFile": "none",
    "StrictModes": "no",
    "UsePAM": "no",
    "PermitRootLogin": "yes",
    "Subsystem": "sftp /usr/lib/openssh/sftp-server",
}


def prepare(folder, owner=None):
    """Makes the folder, and in it keys of a host and of a user who may log in. `owner`: whose the folder and the user's keys are, so
    that this user can be the client."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key]
        subprocess.run(make, check=True)
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    if owner:
        for path in (folder, folder / "user", folder / "user.pub"):
            shutil.chown(path, owner)


def server(folder, port):
    """The command that serves them."""
    options = {**SERVER, "AuthorizedKeysFile": folder / "authorized"}
    argv = ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", port, "-h", folder / "host"]
    return [str(word) for word in argv] + [f"-o{key}={value}" for key, value in options.items()]


def client(folder):
    """Options of ssh and scp, and who logs in where."""
    options = ["-q", "-i", str(folder / "user"), "-o", "StrictHostKeyChecking=no"]
    options += ["-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
    return options, f"{os.environ.get('USER') or 'root'}@127.0.0.1"
