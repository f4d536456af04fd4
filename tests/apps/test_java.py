"""Java 17: a selector and blocking threads as servers, channels and streams as clients."""

import subprocess
from pathlib import Path

import pytest

from support import check, placements

SOURCE = Path(__file__).parent / "java" / "Echo.java"
# A test machine is small: no parallel collector, no second compiler.
OPTIONS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """The compiled program."""
    folder = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-d", folder, SOURCE], check=True)
    return folder


def echo(classes, server_kind):
    """Both kinds of client talk to one kind of server."""

    def scenario(stage):
        java = ["java", *OPTIONS, "-cp", classes, "Echo"]
        port = stage.port()
        # 143: the virtual machine ends by SIGTERM after its shutdown hooks.
        server = stage.server(server_kind, [*java, f"{server_kind}-server", port], port=port)
        nio = stage.client("nio", [*java, "nio-client", port]).text
        blocking = stage.client("blocking", [*java, "blocking-client", port]).text
        stage.stop(server)
        return nio, blocking

    return scenario


@placements()
def test_selector_server(ladder, classes, placement):
    """Every byte comes back from a selector loop."""
    check(ladder, "java-nio", echo(classes, "nio"), placement, bulk=True)


@placements()
def test_blocking_server(ladder, classes, placement):
    """Every byte comes back from blocking threads."""
    check(ladder, "java-blocking", echo(classes, "blocking"), placement, bulk=True)
