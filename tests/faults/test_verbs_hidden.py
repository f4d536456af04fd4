"""Connections between hosts: the descriptors of an RDMA device are none of the program's.

The devices are stand-ins (`test_verbs.py`), with as many descriptors as real ones: device, its events, completions, connection
manager.
"""

from pathlib import Path

import pytest

from .test_verbs import ADDRESSES, PORT, built, by_sdp, hosts, pytestmark

__all__ = ["built", "hosts", "pytestmark"]

PROGRAM = Path(__file__).resolve().parent / "programs" / "hidden.py"


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["look", "close", "close_range", "closefrom", "close-all", "dup2", "dup2-full", "dup2-busy"])
def test_descriptors_of_a_device(hosts, how):
    """They are not in the way of the program's next numbers, no other program gets them, nothing that closes numbers closes
    them, and a file that is put onto one of them stays as it is: the streams go on."""
    server = hosts.serve()
    folder = hosts.path / "files"
    folder.mkdir()
    folder.chmod(0o1777)
    hosts.every_byte(hosts.start(1, "client", ADDRESSES[0], PORT, folder, how, program=PROGRAM))
    client, server = hosts.stop(server)
    if how == "dup2-full":
        # What could not move was the device's loss.
        assert set(client["demotions"]) == {"lane-lost"}, client
        return
    for report in (client, server):
        assert report["fabrics"]["verbs"] == 2 and report["demotions"] == {}, report
        assert by_sdp(report) > sum(report["bytes"].values()) / 2, report
