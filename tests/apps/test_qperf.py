"""qperf: its tests of SDP ask for AF_INET_SDP by themselves, whatever the rules say."""

import re

from support import Placement, check, placements

RULES = ("use tcp server * *:*", "use tcp client * *:*")
MEASURED = {"lat": "latency", "bw": "bw"}


def runs(stage):
    """A server, and a client that has it measure; over plain TCP, where no kernel knows SDP, its tests of TCP."""
    lane = "tcp" if stage.placement is Placement.PLAIN else "sdp"
    port = stage.port()
    server = stage.server("qperf-server", ["qperf", "-lp", port], port=port, rules=RULES)
    result = {}
    for kind, figure in MEASURED.items():
        argv = ["qperf", "-lp", port, "-t", "1", "127.0.0.1", f"{lane}_{kind}"]
        text = stage.client(f"qperf-{kind}", argv, rules=RULES).text
        assert text.startswith(f"{lane}_{kind}:"), text
        assert re.search(rf"\b{figure} += +[\d.]+ ", text), text
        result[kind] = figure
    stage.stop(server)
    return result


@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP)
def test_sdp(ladder, placement):
    """Both tests come to their end; what they measured went over SDP, and qperf's own connection did not."""
    check(ladder, "qperf", runs, placement, quiet=False)


def test_no_library_at_the_server(ladder):
    """SDP or nothing: the client says so, and no figure is made up."""

    def scenario(stage):
        port = stage.port()
        server = stage.server("qperf-server", ["qperf", "-lp", port], port=port)
        argv = ["qperf", "-lp", port, "-t", "1", "127.0.0.1", "sdp_lat"]
        done = stage.client("qperf-lat", argv, ok=(1,))
        stage.stop(server)
        return done

    done, _ = ladder.play("qperf-client", scenario, Placement.CLIENT)
    assert "latency" not in done.text, done.text
