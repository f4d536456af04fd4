"""Two hosts whose programs are root's."""

import pytest

from .test_verbs import Hosts


class Rooted(Hosts):
    """Its programs are root's: they change their users themselves, or READ each other's memory."""

    users = None, None


@pytest.fixture(name="hosts")
def rooted_hosts():
    hosts = Rooted()
    try:
        yield hosts
    finally:
        hosts.close()
