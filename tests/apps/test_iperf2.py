"""iperf 2 with 1, 2, 4 and 8 connections."""

import signal

from support import check, placements

VOLUME = 16 * 1024 * 1024


def transfers(stage):
    """The same volume on every connection."""
    port = stage.port()
    argv = ["iperf", "-s", "-B", "127.0.0.1", "-p", port]
    server = stage.server("iperf", argv, port=port, stop=signal.SIGTERM)
    result = {}
    for connections in (1, 2, 4, 8):
        argv = ["iperf", "-c", "127.0.0.1", "-p", port, "-P", str(connections)]
        text = stage.client("iperf", argv + ["-n", str(VOLUME), "-y", "C"]).text
        lines = [line.split(",") for line in text.splitlines()]
        moved = [int(fields[7]) for fields in lines if fields[5] != "-1"]
        assert moved == [VOLUME] * connections, text
        result[connections] = moved
    stage.stop(server)
    return result


@placements()
def test_connections(ladder, placement):
    """Every connection moves its volume."""
    check(ladder, "iperf2", transfers, placement, bulk=True)
