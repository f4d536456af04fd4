"""A guest with an RDMA device, the kernel's NFS server and client, and a gateway between them."""

import pytest

from machines.guest import Guest
from machines.kernel import NoGuests, prepare
from machines.layer import prepare_layer
from nfs.lab import Lab

PACKAGES = ["nfs-common", "nfs-kernel-server", "rpcbind"]


@pytest.fixture(scope="session", name="lab")
def _lab(ladder):
    """Booted once; a test starts the gateways that it needs."""
    try:
        kernel, layer = prepare(), prepare_layer("nfs", PACKAGES)
    except NoGuests as why:
        pytest.skip(f"guests cannot run here: {why}")
    guest = Guest(kernel, memory_mb=1024, layer=layer)
    try:
        guest.wait_up()
        yield Lab(guest, ladder.artifacts.sdp)
    finally:
        guest.close()
