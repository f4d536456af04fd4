"""The container of this suite, booted once."""

import os
import shutil

import pytest

from services.booted import Booted, NoSystemd


@pytest.fixture(scope="session", name="booted")
def _booted(ladder):
    """A systemd that knows this machine's units."""
    if os.geteuid() != 0 or not os.path.exists("/lib/systemd/systemd") or not shutil.which("systemctl"):
        pytest.skip("no systemd can be process 1 here: not root, or not installed")
    try:
        booted = Booted(ladder.artifacts)
    except NoSystemd as why:
        pytest.skip(f"no systemd can be process 1 here: {why}")
    yield booted
    booted.close()
