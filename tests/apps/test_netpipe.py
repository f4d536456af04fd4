"""NetPIPE: every message size up to 200 kB, with its integrity mode and without."""

import re

import pytest

from support import check, placements


def run(stage, *options):
    """One server, one client; the sizes that the client went through."""
    port = stage.port()
    common = ["-P", port, "-u", "200000", "-n", "60", *options]
    server = stage.server("NPtcp", ["NPtcp", *common, "-o", stage.dir / "server.out"], port=port)
    argv = ["NPtcp", "-h", "127.0.0.1", *common, "-o", stage.dir / "client.out"]
    done = stage.client("NPtcp", argv)
    server.wait(30)
    stage.stop(server)
    # NetPIPE writes its progress to standard error.
    text = (done.out + done.err).decode()
    return re.findall(r"^ *\d+: +(\d+) bytes +(\d+) times", text, re.M), text


def integrity(stage):
    """Each block is compared by NetPIPE itself."""
    sizes, text = run(stage, "-i")
    assert len(sizes) >= 30, text
    assert text.count("Integrity check passed") == len(sizes), text
    return sizes


def streams(stage):
    """The measuring mode, and with offsets that make every copy unaligned."""
    aligned, _ = run(stage)
    unaligned, _ = run(stage, "-O", "1,3")
    assert len(aligned) > 60 and len(unaligned) > 60
    return aligned, unaligned


@pytest.mark.quick
@placements()
def test_integrity(ladder, placement):
    """NetPIPE finds every block intact."""
    check(ladder, "netpipe-integrity", integrity, placement, bulk=True)


@placements()
def test_streams(ladder, placement):
    """The measuring modes run to their end."""
    check(ladder, "netpipe", streams, placement, bulk=True)
