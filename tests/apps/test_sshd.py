"""sshd with its sandbox and re-execution; scp of 20 MB both ways, ssh with a pipe."""

import hashlib
import os
import subprocess
from pathlib import Path

from support import check, placements

DATA = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(312_500))


def copies(stage):
    """Files and a pipe through sshd."""
    assert len(DATA) == 20_000_000
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    folder = stage.dir / "ssh"
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key]
        subprocess.run(make, check=True)
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    port = stage.port()
    options = {
        "ListenAddress": "127.0.0.1",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "Subsystem": "sftp /usr/lib/openssh/sftp-server",
    }
    argv = ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", port, "-h", folder / "host"]
    argv += [f"-o{key}={value}" for key, value in options.items()]
    server = stage.server("sshd", argv, port=port)
    common = ["-q", "-i", folder / "user", "-o", "StrictHostKeyChecking=no"]
    common += ["-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
    who = f"{os.environ.get('USER') or 'root'}@127.0.0.1"
    (folder / "file").write_bytes(DATA)
    stage.client("up", ["scp", *common, "-P", port, folder / "file", f"{who}:{folder}/up"])
    stage.client("down", ["scp", *common, "-P", port, f"{who}:{folder}/up", folder / "down"])
    # The old protocol: scp speaks by itself instead of by sftp.
    stage.client("old", ["scp", "-O", *common, "-P", port, folder / "file", f"{who}:{folder}/old"])
    ssh = ["ssh", *common, "-p", port, who]
    summed = stage.client("ssh", [*ssh, "cat | sha256sum"], stdin=DATA).text
    status = stage.client("exit", [*ssh, "exit 7"], ok=(7,)).code
    copied = [(folder / name).read_bytes() for name in ("up", "down", "old")]
    assert [data == DATA for data in copied] == [True] * 3
    stage.stop(server)
    return [hashlib.sha256(data).hexdigest() for data in copied], summed, status


@placements()
def test_copies(ladder, placement):
    """Files arrive as they were."""
    check(ladder, "sshd", copies, placement)
