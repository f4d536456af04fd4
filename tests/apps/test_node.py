"""Node: streams on libuv, with its io_uring back end on and off."""

from pathlib import Path

import pytest

from support import check, placements

SCRIPT = Path(__file__).parent / "node" / "echo.js"


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
