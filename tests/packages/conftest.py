"""What the tests of packages share: the packages themselves, made once."""

import tempfile

import pytest

from .root import make


@pytest.fixture(name="packages", scope="session")
def _packages():
    with tempfile.TemporaryDirectory(prefix="sdp-packages-") as folder:
        yield make(folder)
