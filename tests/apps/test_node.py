"""Node: streams on libuv, with its io_uring back end on and off; HTTP with large responses and uploads."""

import hashlib
from pathlib import Path

import pytest

from support import check, placements

SCRIPT = Path(__file__).parent / "node" / "echo.js"
PAGES = Path(__file__).parent / "node" / "pages.js"


def echo(io_uring):
    """Six clients at once: small messages in turn, then 3 MB piped back."""

    def scenario(stage):
        env = {"UV_USE_IO_URING": io_uring}
        port = stage.port()
        server = stage.server("node", ["node", SCRIPT, "server", port], port=port, env=env)
        text = stage.client("node", ["node", SCRIPT, "client", port], env=env).text
        assert len(text.split()) == 6, text
        stage.stop(server)
        return text

    return scenario


@pytest.mark.parametrize("io_uring", ["0", "1"])
@placements()
def test_streams(ladder, placement, io_uring):
    """Every byte comes back."""
    check(ladder, f"node-uring{io_uring}", echo(io_uring), placement)


def pages(stage):
    """Kept connections of Node's own client, three at once, then curl's."""
    port = stage.port()
    server = stage.server("node", ["node", PAGES, "server", port], port=port)
    text = stage.client("node", ["node", PAGES, "client", port]).text
    assert len(text.split()) == 3, text
    # The length is the address of the page: each of them is a little longer.
    bodies = stage.client("curl", ["curl", "-sS", f"http://127.0.0.1:{port}/[4000000-4000011]"]).out
    assert len(bodies) == sum(range(4_000_000, 4_000_012))
    stage.stop(server)
    return text, hashlib.sha256(bodies).hexdigest()


@placements()
def test_pages(ladder, placement):
    """Every page and every upload is that of plain TCP."""
    check(ladder, "node-pages", pages, placement, bulk=True)
