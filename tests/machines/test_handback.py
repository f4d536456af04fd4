"""A connection between two machines that has met is handed to somebody else: it goes on as plain TCP, byte by byte."""

from pathlib import Path

import pytest

from machines.test_programs import report

PROGRAM = Path(__file__).parent / "programs" / "handback.py"
PORT = 7075
REASONS = {"exec": "exec", "pass": "passed"}


@pytest.mark.integrity
@pytest.mark.parametrize("how", REASONS)
def test_somebody_without_the_library_goes_on(pair, ladder, how):
    """Requests lie unread in the queue pair's buffers when the server gives the connection away."""
    sdp = ladder.artifacts.sdp
    run = f"{sdp} run --no-config --set fabrics=shm,verbs --report /tmp/handback-%s.json -- /usr/bin/python3 {PROGRAM} "
    server = pair.a.start(run % "server" + f"serve {PORT} {how} 150", user="games")
    pair.a.wait_listening(PORT)
    done = pair.b.start(run % "client" + f"ask {pair.a.address} {PORT}", user="nobody").wait(60)
    served = server.wait(30)
    assert done.status == 0 and done.out == b"every byte\n", (done, served)
    assert served.status == 0, served
    client, server = report(pair.b, "handback-client"), report(pair.a, "handback-server")
    print(client["bytes"], server["bytes"], server["demotions"])
    assert client["fabrics"]["verbs"] == server["fabrics"]["verbs"] == 1, (client, server)
    assert server["bytes"]["sdp_received"] > 20_000 and client["bytes"]["sdp_received"] > 20_000
    assert client["bytes"]["tcp_received"] > 20_000
    assert server["demotions"].get(REASONS[how], 0) == 2, server["demotions"]
