"""The containers of this suite, each booted once."""

import os
import shutil

import pytest

from machines.kernel import NoGuests
from machines.layer import prepare_layer
from services.booted import Booted, NoSystemd

# Those whose scripts would start a server on this machine, or whose units this machine has not.
FETCHED = ["apache2", "mariadb-server"]


def container(ladder, layer=""):
    """A systemd that knows this machine's units, and those of the layer."""
    if os.geteuid() != 0 or not os.path.exists("/lib/systemd/systemd") or not shutil.which("systemctl"):
        pytest.skip("no systemd can be process 1 here: not root, or not installed")
    try:
        booted = Booted(ladder.artifacts, layer)
    except NoSystemd as why:
        pytest.skip(f"no systemd can be process 1 here: {why}")
    try:
        yield booted
    finally:
        booted.close()


@pytest.fixture(scope="session", name="booted")
def _booted(ladder):
    """With what is installed here."""
    yield from container(ladder)


@pytest.fixture(scope="session", name="fetched")
def _fetched(ladder):
    """With packages that are unpacked, not installed."""
    try:
        layer = prepare_layer("units", FETCHED)
    except NoGuests as why:
        pytest.skip(f"no packages can be had: {why}")
    yield from container(ladder, layer)
