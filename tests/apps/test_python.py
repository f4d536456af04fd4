"""Python: sockets in every style, asyncio, multiprocessing with connections that are passed on."""

import os
from pathlib import Path

import pytest

from support import check, placements
from support.stage import python

DRIVERS = Path(__file__).parent / "drivers"
BULK = "6000000"


def echo(kind, user=None):
    """Three clients, one after the other, talk to one kind of server, of a user of its own if one is named."""

    def scenario(stage):
        port = stage.port()
        argv = [python(), DRIVERS / "echo_server.py", kind, str(port)]
        server = stage.server(kind, argv, port=port, user=user)
        client = [python(), DRIVERS / "echo_client.py", str(port), BULK]
        texts = [stage.client("client", client).text for _ in range(3)]
        stage.stop(server)
        return texts

    return scenario


def asyncio_clients(stage):
    """Eight clients in one loop against an asyncio server."""
    port = stage.port()
    argv = [python(), DRIVERS / "echo_server.py", "asyncio", str(port)]
    server = stage.server("asyncio", argv, port=port)
    text = stage.client("clients", [python(), DRIVERS / "asyncio_clients.py", str(port)]).text
    stage.stop(server)
    return text


def passed(stage):
    """Managers, queues and a live connection that a parent passes to a child."""
    port = stage.port()
    argv = [python(), DRIVERS / "passing.py", "server", str(port)]
    server = stage.server("server", argv, port=port)
    text = stage.client("client", [python(), DRIVERS / "passing.py", "client", str(port)]).text
    code = server.wait(60)
    stage.stop(server)
    return text, code


def readiness(prefix):
    """A server that trusts epoll."""

    def scenario(stage):
        port = stage.port()
        driver = [*prefix, python(), DRIVERS / "readiness.py"]
        server = stage.server("server", [*driver, "server", str(port)], port=port)
        stage.client("client", [*driver, "client", str(port)])
        code = server.wait(60)
        said = server.output()
        stage.stop(server)
        return code, said

    return scenario


def calls(stage):
    """Every call of the socket module that moves payload, and what each returns."""
    port = stage.port()
    server = stage.server("server", [python(), DRIVERS / "calls.py", "server", str(port)], port=port)
    text = stage.client("client", [python(), DRIVERS / "calls.py", "client", str(port)]).text
    code = server.wait(60)
    stage.stop(server)
    return text, code, server.output()


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["blocking", "selectors", "poll", "asyncio", "fork", "pool"])
@placements()
def test_echo(ladder, placement, kind):
    """Every byte comes back, whatever way the server waits."""
    check(ladder, f"python-{kind}", echo(kind), placement, bulk=True)


@pytest.mark.quick
@placements()
def test_asyncio(ladder, placement):
    """Streams of eight clients at once stay apart and whole."""
    check(ladder, "python-asyncio-clients", asyncio_clients, placement)


@placements()
def test_passing(ladder, placement):
    """A connection goes on in the process it was passed to, unread bytes and all."""
    check(ladder, "python-passing", passed, placement)


@pytest.mark.quick
@placements()
def test_calls(ladder, placement):
    """Peeking, waiting for all, scattering, timeouts, half close: as over TCP."""
    check(ladder, "python-calls", calls, placement)


@pytest.mark.quick
@pytest.mark.parametrize("cpus", ["one", "any"])
@placements()
def test_readiness(ladder, placement, cpus):
    """epoll never says readable when a read finds nothing, with one processor and with all."""
    first = min(os.sched_getaffinity(0))
    prefix = ["taskset", "-c", str(first)] if cpus == "one" else []
    check(ladder, f"python-readiness-{cpus}", readiness(prefix), placement)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set its groups")
@placements()
def test_groups(ladder, placement):
    """Workers that set their groups after the fork, as servers that are started by root do."""
    check(ladder, "python-groups", echo("groups", "root"), placement, bulk=True)
