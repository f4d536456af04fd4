"""Kinds of servers on another host: which of their connections meet, and what the others say.

Which kinds meet is in docs/compatibility.md; the counts of both ends agree.
"""

import json
import os
import signal
import subprocess

import pytest

from faults.test_verbs import ADDRESSES, PORT, TESTS, Hosts, built, python  # noqa: F401  (built: a fixture)

PROGRAM = TESTS / "faults" / "programs" / "meets.py"
CONNECTIONS = 8


@pytest.fixture
def hosts():
    hosts = Hosts()
    yield hosts
    hosts.close()


def played(hosts, kind, ms):
    """The reports of client and server."""
    server = hosts.start(0, "server", "serve", kind, PORT, program=PROGRAM)
    hosts.listens()
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, CONNECTIONS, ms, program=PROGRAM)
    _, err = client.communicate(timeout=60)
    assert (client.returncode, err) == (0, ""), err
    os.killpg(server.pid, signal.SIGTERM)
    server.communicate(timeout=30)
    return [json.loads((hosts.path / f"{name}.json").read_text()) for name in ("client", "server")]


@pytest.mark.parametrize("kind", ["forks", "workers", "listener"])
def test_each_connection_meets(hosts, kind):
    for report in played(hosts, kind, 1500):
        assert report["fabrics"]["verbs"] == CONNECTIONS and not report["reasons"], report
        assert report["bytes"]["sdp_sent"] > report["bytes"]["tcp_sent"], report


def test_what_a_program_was_handed_stays_on_tcp(hosts):
    for report in played(hosts, "handed", 300):
        assert report["fabrics"]["verbs"] == 0 and sum(report["reasons"].values()) == CONNECTIONS, report


@pytest.mark.parametrize("with_library", [0, 1])
def test_an_end_without_the_library_is_told_of(hosts, with_library):
    words = [("serve", "threads", PORT), ("ask", ADDRESSES[0], PORT, 1, 1600)]
    ends = []
    for number, argv in enumerate(words):
        if number == with_library:
            ends.append(hosts.start(number, "end", *argv, program=PROGRAM))
        else:
            argv = hosts.inside(number, python(), PROGRAM, *argv)
            ends.append(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True))
            hosts.started.append(ends[-1])
        if number == 0:
            hosts.listens()
    _, err = ends[1].communicate(timeout=60)
    assert (ends[1].returncode, err) == (0, ""), err
    os.killpg(ends[0].pid, signal.SIGTERM)
    ends[0].communicate(timeout=30)
    report = json.loads((hosts.path / "end.json").read_text())
    assert report["reasons"] == {"peer-not-listening": 1} and report["bytes"]["sdp_sent"] == 0, report
