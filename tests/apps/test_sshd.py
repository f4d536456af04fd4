"""sshd with its sandbox and re-execution; scp of 20 MB both ways, ssh with a pipe."""

import hashlib

from support import check, placements, ssh

DATA = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(312_500))


def copies(stage):
    """Files and a pipe through sshd."""
    assert len(DATA) == 20_000_000
    folder = stage.dir / "ssh"
    ssh.prepare(folder, stage.users.client)
    port = stage.port()
    server = stage.server("sshd", ssh.server(folder, port), port=port, user=stage.servant("sshd") and "root")
    common, who = ssh.client(folder)
    (folder / "file").write_bytes(DATA)
    stage.client("up", ["scp", *common, "-P", port, folder / "file", f"{who}:{folder}/up"])
    stage.client("down", ["scp", *common, "-P", port, f"{who}:{folder}/up", folder / "down"])
    # The old protocol: scp speaks by itself instead of by sftp.
    stage.client("old", ["scp", "-O", *common, "-P", port, folder / "file", f"{who}:{folder}/old"])
    shell = ["ssh", *common, "-p", port, who]
    summed = stage.client("ssh", [*shell, "cat | sha256sum"], stdin=DATA).text
    status = stage.client("exit", [*shell, "exit 7"], ok=(7,)).code
    copied = [(folder / name).read_bytes() for name in ("up", "down", "old")]
    assert [data == DATA for data in copied] == [True] * 3
    stage.stop(server)
    return [hashlib.sha256(data).hexdigest() for data in copied], summed, status


@placements()
def test_copies(ladder, placement):
    """Files arrive as they were."""
    check(ladder, "sshd", copies, placement)
