"""These suites' programs and what they are built with may lie where no other user can read: both ends are of one user, ours.

Programs that change their users are played by `test_confined.py`, in its own way.
"""

import pytest


@pytest.fixture(autouse=True)
def of_one_user(request):
    """For as long as a test of this folder runs."""
    if "ladder" not in request.fixturenames:
        yield
        return
    ladder = request.getfixturevalue("ladder")
    ladder.is_of_one_user = True
    yield
    ladder.is_of_one_user = False
