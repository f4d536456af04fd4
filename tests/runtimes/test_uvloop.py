"""uvloop: libuv inside a Python extension module, which wants io_uring for its epoll changes."""

import pytest

from support import Placement, check, placements

from .cache import HERE, Runtimes


@pytest.fixture(scope="module")
def interpreter():
    """Python with uvloop."""
    return Runtimes().uvloop()


def streams(interpreter):
    """Four clients of one loop at once against a server of one loop."""

    def scenario(stage):
        port = stage.port()
        driver = [interpreter, HERE / "programs" / "uv.py"]
        server = stage.server("server", [*driver, "server", port], port=port)
        text = stage.client("client", [*driver, "client", port]).text
        code = stage.stop(server)
        return text, code

    return scenario


@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP, Placement.SERVER)
def test_streams(ladder, interpreter, placement):
    """The loop falls back to calls that the library sees, and the bytes go over SDP."""
    check(ladder, "uvloop", streams(interpreter), placement, bulk=True)
