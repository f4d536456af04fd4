"""Guests for the tests of this folder, each booted once."""

import pytest

from machines.guest import Guest, Pair
from machines.kernel import NoGuests, prepare
from machines.wire import Ends


@pytest.fixture(scope="session", name="kernel")
def _kernel():
    """What guests are booted from."""
    try:
        return prepare()
    except NoGuests as why:
        pytest.skip(f"guests cannot run here: {why}")


def booted(machine):
    """Waits for it, and ends it in any case."""
    try:
        machine.wait_up()
        yield machine
    finally:
        machine.close()


@pytest.fixture(scope="session", name="pair")
def _pair(ladder, kernel, tmp_path_factory):
    """Two guests with soft-RoCE devices on one wire. (The library is copied before they boot.)"""
    assert ladder.artifacts.sdp
    # A guest remembers modes of folders that it has looked at: what every user is to enter is opened before.
    base = tmp_path_factory.getbasetemp()
    for path in (base, *base.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(path.stat().st_mode | 0o055)
    yield from booted(Pair(kernel))


@pytest.fixture(scope="session", name="bare")
def _bare(ladder, kernel):
    """A guest without an RDMA device."""
    assert ladder.artifacts.sdp
    yield from booted(Guest(kernel, soft_roce=False))


@pytest.fixture(name="ends")
def _ends(pair, ladder):
    """A server on one machine, clients on the other."""
    ends = Ends(pair, ladder)
    yield ends
    ends.close()
