"""What a wire does to a connection that has met: loss, reordering, delay, a link that goes down. Every byte arrives, as
over TCP."""

import json
import os

import pytest

from machines.shown import EVENT_S, goes_on, is_on_queue_pair
from machines.test_between import Exchange, equal_sums
from machines.test_programs import report

IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
TROUBLES = {"late": "delay 4ms 3ms 25% reorder 20% 50%"} | ({"lossy": "loss 1%"} if IS_WHOLE else {})
DOWN = "ip link set eth0 down; sleep 1; ip link set eth0 up; ip addr replace fd00:9::1/64 dev eth0 nodad"


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
    """A second without a link in the middle: the stream goes on, and has a queue pair again. So has a connection that begins
    afterwards, with a server that was there before."""
    exchange = Exchange(pair, ladder)
    clients = []
    for is_cut in (True, False):
        asked = exchange.start_open()
        try:
            before = exchange.until(is_on_queue_pair, asked)
            if is_cut:
                pair.a.run(DOWN)
                exchange.until(lambda end: is_on_queue_pair(end) and goes_on(end, before, "sdp"), asked)
        finally:
            exchange.enough()
        done = asked.wait(EVENT_S)
        assert done.status == 0 and done.out == b"every byte\n", done
        clients.append(report(pair.b, "exchange-client"))
    server = exchange.stop()
    print(json.dumps([*clients, server]))
    assert [client["fabrics"]["verbs"] for client in clients] == [1, 1], clients
    by_all = {way: sum(client["bytes"][way] for client in clients) for way in clients[0]["bytes"]}
    equal_sums(by_all, server["bytes"])
