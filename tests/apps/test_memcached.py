"""memcached with its threads and scattered sends."""

from pathlib import Path

from support import check, placements
from support.stage import python

DRIVER = Path(__file__).parent / "drivers" / "memcached_client.py"


def values(stage):
    """Four clients store and read 400 values each, up to 38 KiB."""
    port = stage.port()
    # Started as root it would change its user by itself: here it is its own from the beginning, as by its unit.
    argv = ["memcached", "-u", stage.servant("memcached") or "root", "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "2"]
    server = stage.server("memcached", argv, port=port)
    text = stage.client("client", [python(), DRIVER, str(port)]).text
    stage.stop(server)
    return text


@placements()
def test_values(ladder, placement):
    """Every value comes back as over plain TCP."""
    check(ladder, "memcached", values, placement, bulk=True)
