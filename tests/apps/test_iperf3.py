"""iperf3: forward, reverse, parallel and both directions at once, a fixed volume each."""

import json

from support import ONE_TOO, check, placements

VOLUME = 100 * 1024 * 1024
RUNS = {
    "forward": [],
    "reverse": ["-R"],
    "parallel": ["-P", "4"],
    "both ways": ["--bidir"],
    "small blocks": ["-l", "1500"],
}


def transfers(stage):
    """One server for all; what it and the client say they moved."""
    port = stage.port()
    server = stage.server("iperf3", ["iperf3", "-s", "-B", "127.0.0.1", "-p", port], port=port)
    result = {}
    for name, options in RUNS.items():
        argv = ["iperf3", "-c", "127.0.0.1", "-p", port, "-n", str(VOLUME), "-J", *options]
        end = json.loads(stage.client(name, argv).out)["end"]
        sums = {key: end[key]["bytes"] for key in end if key.startswith("sum_")}
        # The client stops when one direction has had the volume; the other may have had less.
        assert max(sums.values()) >= VOLUME and min(sums.values()) > 0, sums
        result[name] = sorted(sums)
    stage.stop(server)
    return result


@placements(*ONE_TOO)
def test_transfers(ladder, placement):
    """Every transfer moves its volume."""
    check(ladder, "iperf3", transfers, placement, bulk=True, quiet=False)
