"""A connection between two machines that has met is handed to somebody else: it goes on as plain TCP, byte by byte."""

from pathlib import Path

import pytest

from machines.test_between import IS_WHOLE
from machines.test_programs import report

PROGRAM = Path(__file__).parent / "programs" / "handback.py"
PORT = 7075
REASONS = {"exec": "exec", "pass": "passed"}
# Of a fork: the child goes on at once, with the parent still holding the connection or not, or later, or in a new image.
CHILDREN = ("child-waits", "child-exec") + (("child", "child-later", "child-after") if IS_WHOLE else ())


def play(pair, ladder, how):
    """The reports of a client and of the server."""
    sdp = ladder.artifacts.sdp
    run = f"{sdp} run --no-config --set fabrics=shm,verbs --report /tmp/handback-%s.json -- /usr/bin/python3 {PROGRAM} "
    server = pair.a.start(run % "server" + f"serve {PORT} {how} 150", user="games")
    pair.a.wait_listening(PORT)
    done = pair.b.start(run % "client" + f"ask {pair.a.address} {PORT}", user="nobody").wait(90)
    served = server.wait(30)
    assert done.status == 0 and done.out == b"every byte\n", (done, served)
    assert served.status == 0, served
    client, server = report(pair.b, "handback-client"), report(pair.a, "handback-server")
    print(how, client["bytes"], server["bytes"], server["demotions"], client["demotions"])
    return client, server


@pytest.mark.integrity
@pytest.mark.parametrize("how", CHILDREN)
def test_a_fork_child_goes_on(pair, ladder, how):
    """The server forks when the connection has met."""
    client, _ = play(pair, ladder, how)
    assert client["fabrics"]["verbs"] == 1, client
    assert client["bytes"]["sdp_received"] > 20_000 and client["bytes"]["tcp_received"] > 20_000


@pytest.mark.integrity
def test_a_child_that_only_has_it_changes_nothing(pair, ladder):
    """As that which saves a database: the parent stays on the queue pair."""
    client, server = play(pair, ladder, "idle-child")
    for end in (client, server):
        assert end["bytes"]["sdp_received"] > 150_000, end


@pytest.mark.integrity
@pytest.mark.parametrize("how", REASONS)
def test_somebody_without_the_library_goes_on(pair, ladder, how):
    """Requests lie unread in the queue pair's buffers when the server gives the connection away."""
    client, server = play(pair, ladder, how)
    assert client["fabrics"]["verbs"] == server["fabrics"]["verbs"] == 1, (client, server)
    assert server["bytes"]["sdp_received"] > 20_000 and client["bytes"]["sdp_received"] > 20_000
    assert client["bytes"]["tcp_received"] > 20_000
    # A half that is on TCP at that moment tells nothing.
    assert server["demotions"].get(REASONS[how], 0) >= 1, server["demotions"]
