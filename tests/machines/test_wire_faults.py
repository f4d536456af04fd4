"""What a wire does to a connection that has met: loss, reordering, delay, a link that goes down. Every byte arrives, as
over TCP."""

import json
import os

import pytest

from machines.test_between import Exchange, equal_sums
from machines.test_programs import report

IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
TROUBLES = {"late": "delay 4ms 3ms 25% reorder 20% 50%"} | ({"lossy": "loss 1%"} if IS_WHOLE else {})
PAUSED = "for i in $(seq 600); do [ -e /tmp/pause ] && exit 0; sleep 0.1; done; exit 1"


@pytest.mark.integrity
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_bad_wire(pair, ladder, trouble):
    """netem on both cards, under TCP and RDMA alike."""
    exchange = Exchange(pair, ladder)
    for guest in (pair.a, pair.b):
        guest.run(f"modprobe sch_netem; tc qdisc replace dev eth0 root netem {TROUBLES[trouble]}")
    try:
        client = exchange.ask("--rounds", 60)
    finally:
        for guest in (pair.a, pair.b):
            guest.run("tc qdisc del dev eth0 root")
    server = exchange.stop()
    print(json.dumps([client, server]))
    equal_sums(client["bytes"], server["bytes"])


@pytest.mark.integrity
def test_the_link_goes_down_and_up(pair, ladder):
    """A second without a link in the middle: the stream goes on, by whatever lane."""
    exchange = Exchange(pair, ladder)
    asked = exchange.start("--rounds", 150, "--pause-file", "/tmp/pause")
    pair.b.run(PAUSED, 90)
    down = pair.a.start("ip link set eth0 down; sleep 1; ip link set eth0 up; ip addr replace fd00:9::1/64 dev eth0 nodad")
    pair.b.run("rm /tmp/pause")
    done = asked.wait(120)
    assert done.status == 0 and done.out == b"every byte\n", done
    assert down.wait().status == 0
    client, server = report(pair.b, "exchange-client"), exchange.stop()
    assert client["fabrics"]["verbs"] == 1, client
    equal_sums(client["bytes"], server["bytes"])
