"""Static Go programs, which no preload library reaches: at one end, the other end is preloaded, and as holders of
connections with bytes unread."""

import os
import subprocess
from pathlib import Path

import pytest

from faults.harness import both
from support import Placement, placements
from support.report import assert_fell_back
from support.stage import python

SOURCE = Path(__file__).parent / "go"
SERVER = Path(__file__).parent / "drivers" / "echo_server.py"
CLIENT = Path(__file__).parent / "drivers" / "echo_client.py"
BULK = 8_000_000


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The compiled program, without cgo: static, no dynamic loader."""
    folder = tmp_path_factory.mktemp("go")
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOCACHE": str(folder / "cache")}
    subprocess.run(["go", "build", "-o", folder / "echo", "."], cwd=SOURCE, env=env, check=True)
    return folder / "echo"


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@placements(Placement.PLAIN, Placement.SERVER, Placement.BOTH)
def test_static_client(ladder, program, placement, kind):
    """Every byte comes back over TCP, and the server's report says that it was TCP."""

    def scenario(stage):
        port = stage.port()
        server = stage.server("server", [python(), SERVER, kind, str(port)], port=port)
        text = stage.client("go", [program, f"127.0.0.1:{port}"]).text
        stage.stop(server)
        return text

    expected = ladder.plain(f"go-{kind}", scenario)
    if placement is Placement.PLAIN:
        return
    result, stage = ladder.play(f"go-{kind}", scenario, placement)
    assert result == expected
    assert len(stage.server_reports) == 1
    assert_fell_back(stage.server_reports[0])


@pytest.mark.parametrize("how", ["reading", "stopped", "closed"])
@pytest.mark.parametrize("number", [0, 3])
def test_given_a_connection(program, number, how):
    """What was unread in the ring, and then a conversation, if there is anybody to talk with."""
    where = "out" if how == "closed" else "back"
    words = [program, "descriptor", number, where]
    outcome = both("holders", "strange", how, number, "kept", *words)
    assert outcome.seen["fine"] and outcome.seen["codes"] == [0, 0], outcome.describe()
    # Its standard output is the connection, too, where there is somebody to talk with.
    reason = "exec" if (number, how) == (3, "closed") else "standard-descriptor"
    assert outcome.report.count("demotions", reason) == 2, outcome.describe()
    assert outcome.report.count("bytes", "sdp_sent") > 20_000, outcome.describe()


@placements(Placement.PLAIN, Placement.CLIENT, Placement.BOTH)
def test_static_server(ladder, program, placement):
    """Every byte comes back over TCP, and the client's report says that nobody came to meet it."""

    def scenario(stage):
        port = stage.port()
        server = stage.server("go", [program, "serve", f"127.0.0.1:{port}"], port=port)
        text = stage.client("client", [python(), CLIENT, str(port), str(BULK)]).text
        stage.stop(server)
        return text

    expected = ladder.plain("go-server", scenario)
    if placement is Placement.PLAIN:
        return
    result, stage = ladder.play("go-server", scenario, placement)
    assert result == expected
    (report,) = stage.client_reports
    assert_fell_back(report)
    assert report.tcp_bytes > 2 * BULK, report.describe()
    assert {word for word, count in report.raw["reasons"].items() if count} == {"peer-not-listening"}
    # Of the server the library knows nothing, wherever it was preloaded.
    assert all(other.seen == 0 for other in stage.server_reports)
