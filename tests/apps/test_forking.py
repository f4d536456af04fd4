"""A server in C that forks for each connection: several clients, several messages on each connection."""

import subprocess
from pathlib import Path

import pytest

from support import UNFLIPPED, check, placements

SOURCE = Path(__file__).parent / "drivers" / "forking.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The compiled program."""
    path = tmp_path_factory.mktemp("forking") / "forking"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, SOURCE], check=True)
    return path


def scenario(program, clients, connections, messages, length):
    """Clients at the same time; each has one connection after the other."""

    def run(stage):
        port = stage.port()
        server = stage.server("forking", [program, "server", port], port=port)
        argv = [program, "client", port, connections, messages, length]
        running = [stage.start("client", argv) for _ in range(clients)]
        texts = [stage.finish(client).text for client in running]
        stage.stop(server)
        return texts

    return run


@placements()
def test_conversations(ladder, program, placement):
    """Every echo is what was sent; the children, which do the I/O, are on SDP."""
    check(ladder, "forking", scenario(program, 3, 10, 200, 6000), placement)


@placements(*UNFLIPPED)
def test_single_messages(ladder, program, placement):
    """One message per connection: nothing is worth a lane, and nothing is lost by looking."""
    check(ladder, "forking-once", scenario(program, 3, 150, 1, 500), placement)
