"""Guests for the tests of this folder, each booted once."""

import tempfile
from pathlib import Path

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


@pytest.fixture(scope="session", name="folder")
def _folder():
    """A folder that every user of a guest can enter. None of pytest's: each session of pytest on this machine closes the one
    above those to all but its own user."""
    with tempfile.TemporaryDirectory(prefix="sdp-machines-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="session", name="pair")
def _pair(ladder, kernel, folder):
    """Two guests with soft-RoCE devices on one wire. (The library is copied before they boot, and the folder made: a guest
    remembers modes of folders that it has looked at.)"""
    assert ladder.artifacts.sdp and folder
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
