"""sockperf over TCP: ping-pong with data integrity, throughput, under load."""

import re

from support import check, placements

# A ping-pong of more than 600 000 messages a second outgrows the records that sockperf has made for it, and fails.
RUNS = {
    "ping-pong": ["-m", "1000", "-t", "1", "--mps", "200000", "--data-integrity"],
    "throughput": ["-m", "8000", "-t", "1"],
    "under-load": ["-m", "2000", "-t", "1", "--mps", "20000"],
}


def runs(stage):
    """One server; no message is lost, doubled or out of order."""
    port = stage.port()
    argv = ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port]
    server = stage.server("sockperf", argv, port=port)
    result = {}
    for name, options in RUNS.items():
        argv = ["sockperf", name, "--tcp", "-i", "127.0.0.1", "-p", port, *options]
        text = stage.client(name, argv).text
        losses = re.findall(r"# (\w+[\w -]* messages) = (\d+)", text)
        assert all(count == "0" for _, count in losses), text
        assert ("Summary: Message Rate" if name == "throughput" else "dropped messages") in text
        result[name] = losses
    stage.stop(server)
    return result


@placements()
def test_runs(ladder, placement):
    """No message is lost, doubled or out of order."""
    check(ladder, "sockperf", runs, placement, quiet=False)
