"""`sdp perf` between two network namespaces, with the stand-in for RDMA devices: what carried the bytes is told by the
counters of both ends, and that nothing did where a device is missing. No figure is judged."""

import json
import os
import subprocess

import pytest

from .harness import SDP
from .test_verbs import ADDRESSES, LIBRARY, LIMIT_S, Hosts, built, fault, pytestmark

__all__ = ["built", "pytestmark"]


class Measured(Hosts):
    """`sdp perf serve` on the first host, `sdp perf` on the second."""

    def spawn(self, number, *words, fail=()):
        environment = {**os.environ, "SDP_LIBRARY": str(LIBRARY), "SDP_FAKE_NETWORK": str(self.path / "network"),
                       "SDP_FAKE_FAIL": ",".join(fail)}
        argv = self.inside(number, SDP, "perf", *words)
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        self.started.append(process)
        return process

    def serve(self, **how):
        server = self.spawn(0, "serve", **how)
        assert server.stdout.readline().startswith("measuring with whoever asks at [::]:7798"), server
        return server

    def ask(self, *words, **how):
        client = self.spawn(1, *words, **how)
        out, err = client.communicate(timeout=LIMIT_S)
        return client.returncode, out, err

    def measure(self, *words, **how):
        code, out, err = self.ask(*words, "--rounds", 3, "--seconds", 0.6, "--json", **how)
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def hosts():
    hosts = Measured()
    try:
        yield hosts
    finally:
        hosts.close()


def judge(outcome, connections):
    """Both ends counted the same connections over queue pairs, and nothing of TCP's pair."""
    ends = outcome["ends"]
    assert ends["fabric"] == "verbs" and ends["peer"] == f"{ADDRESSES[0]}:7798", outcome
    for end in (ends["here"], ends["there"]):
        assert end["verbs"] == connections and end["shm"] == 0 and end["sdp_bytes"] > 0, outcome
    both = lambda end: end["sdp_bytes"] + end["tcp_bytes"]
    assert both(ends["here"]) == both(ends["there"]), outcome
    assert outcome["sdp_share"] == pytest.approx(ends["here"]["sdp_bytes"] / both(ends["here"])), outcome
    for transport in ("tcp", "sdp"):
        assert outcome[transport]["value"]["min"] > 0, outcome
        assert min(ends["cpu_ns_per_byte"][transport].values()) > 0, outcome


def test_latency_bandwidth_and_rate(hosts):
    """One command at each end; and what they had is gone when they have."""
    hosts.serve()
    outcomes = hosts.measure("between", ADDRESSES[0])
    assert [outcome["unit"] for outcome in outcomes] == ["us", "GB/s", "Mmsg/s"], outcomes
    for outcome in outcomes:
        judge(outcome, 1)
    judge(hosts.measure("latency", "--peer", ADDRESSES[0], "--connections", 3, "--epoll"), 3)
    code, text, err = hosts.ask("latency", "--peer", ADDRESSES[0], "--rounds", 1, "--seconds", 0.1)
    assert code == 0 and "by RDMA: 1 connections here, 1 there" in text and "CPU ns/B: TCP" in text, (text, err)
    hosts.wait(lambda live: live["qps"] == 0)


@pytest.mark.parametrize("where", [0, 1])
def test_no_device_at_one_end(hosts, where):
    """It measures TCP only, and says so, with the reason at the end that has none."""
    fail = [fault("DeviceList", 1, 1 << 30)]
    hosts.serve(fail=fail if where == 0 else ())
    outcome = hosts.measure("latency", "--peer", ADDRESSES[0], fail=fail if where == 1 else ())
    ends = outcome["ends"]
    assert ends["fabric"] is None and outcome["sdp_share"] == 0, outcome
    assert "no-device" in ends["there" if where == 0 else "here"]["reasons"], outcome


def test_nobody_serves(hosts):
    """A sentence that says what to start, and where."""
    code, _, err = hosts.ask("latency", "--peer", ADDRESSES[0])
    assert code == 1 and f"start there: sdp perf serve {ADDRESSES[0]}" in err and len(err.splitlines()) == 1, err
