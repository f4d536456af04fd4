"""Unmodified programs on two machines: every reply is right, and the report of each end says which lane was used, or why none.

The fabric between hosts is asked for; without it everything is TCP.
"""

import hashlib
import json
import warnings

import pytest

# Settings of `sdp run`, what carries the payload then, and why it is not SDP where it is not.
ROADS = {"tcp": (("--set", "fabrics=shm"), "tcp", "remote-peer"), "verbs": (("--set", "fabrics=shm,verbs"), "sdp", None)}
PORT = 6379
VALUE = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(20_000))
# The server's user, and the client's.
USERS = ("redis", "nobody")
# So often a test is played whose lanes were lost: the machines share a host, and one that stands still for 600 ms does not
# acknowledge what soft-RoCE sends again.
PLAYS = 3


class Lost(AssertionError):
    """Too little went over queue pairs, and some of these were lost."""


class Service:
    """redis-server on machine `a`, clients on `b`."""

    def __init__(self, pair, ladder, preloaded=("a", "b"), road="verbs"):
        self.pair, self.sdp, self.preloaded, self.road = pair, ladder.artifacts.sdp, preloaded, road
        words = ["redis-server", "--bind", "0.0.0.0", "--port", PORT, "--save", "", "--protected-mode", "no", "--dir", "/tmp"]
        # Another test's may be of a user whose files this one may not write.
        pair.a.run("rm -f /tmp/server.json")
        self.server = pair.a.start(self.command(pair.a, "server", words), user=USERS[0])
        pair.a.wait_listening(PORT)

    def command(self, guest, name, words):
        """The command, under `sdp run` where the machine has the library."""
        if guest.name not in self.preloaded:
            return words
        settings = ROADS[self.road][0]
        return [self.sdp, "run", "--no-config", *settings, "--report", f"/tmp/{name}.json", "--", *words]

    def client(self, name, words, stdin=None, limit_s=90):
        """Runs a client to its end."""
        guest = self.pair.b
        words = " ".join(map(str, self.command(guest, name, words)))
        return guest.run(words + (f" <{stdin}" if stdin else ""), limit_s, user=USERS[1])

    def cli(self, name, *words, stdin=None):
        """What redis-cli answers."""
        return self.client(name, ["redis-cli", "-h", self.pair.a.address, "-p", PORT, *words], stdin).out

    def stop(self):
        """Ends the server; its report, if the library was there."""
        self.pair.a.run("pkill -TERM -x redis-server")
        server, self.server = self.server, None
        done = server.wait()
        assert done.status == 0, done
        return report(self.pair.a, "server") if "a" in self.preloaded else None


def report(guest, name):
    """A report that was written in a guest."""
    return json.loads(guest.run(["cat", f"/tmp/{name}.json"]).out)


def judge(found, at_least, road):
    """The payload went over the lane that is expected, and if that is TCP, for the reason that is expected."""
    _, lane, reason = ROADS[road]
    print(json.dumps(found))
    moved = {of: found["bytes"][f"{of}_sent"] + found["bytes"][f"{of}_received"] for of in ("sdp", "tcp")}
    if lane == "tcp":
        assert moved["tcp"] >= at_least, moved
        assert moved["sdp"] == 0, moved
        assert found["reasons"].get(reason, 0) >= 1, found
        return
    assert sum(moved.values()) >= at_least, moved
    # A connection begins on TCP, and one of the benchmark's is too short for anything else.
    if moved["sdp"] < 0.5 * at_least:
        raise (Lost if found["demotions"].get("lane-lost") else AssertionError)(found)
    assert found["fabrics"]["verbs"] >= 1 and found["fabrics"]["shm"] == 0, found


@pytest.mark.integrity
@pytest.mark.parametrize("road", ROADS)
def test_redis_between_machines(pair, ladder, road):
    """Server and clients under `sdp run`, of different users: a large value there and back, and a benchmark's many replies."""
    for left in reversed(range(PLAYS)):
        service = Service(pair, ladder, road=road)
        try:
            return play_redis(pair, service, road)
        except Lost as why:
            if not left:
                raise
            warnings.warn(f"played again, for lanes were lost: {why}", stacklevel=1)
            if service.server is not None:
                service.stop()


def play_redis(pair, service, road):
    pair.b.run("cat >/tmp/value.sh <<'E'\n"
               "import hashlib, sys\n"
               "sys.stdout.buffer.write(b''.join(hashlib.sha256(b'%d' % i).digest() for i in range(20_000)))\n"
               "E\n/usr/bin/python3 /tmp/value.sh >/tmp/value; chmod 644 /tmp/value")
    assert service.cli("set", "-x", "set", "large", stdin="/tmp/value") == b"OK\n"
    assert service.cli("get", "--raw", "get", "large") == VALUE + b"\n"
    bench = ["redis-benchmark", "-h", pair.a.address, "-p", PORT, "-c", 4, "-n", 300, "-d", 512, "-t", "set,get,incr", "--csv"]
    lines = service.client("bench", bench, limit_s=120).text.splitlines()
    assert [line.split(",")[0].strip('"') for line in lines] == ["test", "SET", "GET", "INCR"], lines
    assert service.cli("count", "--raw", "get", "counter:__rand_int__") == b"300\n"
    for name, size in (("get", len(VALUE)), ("bench", 2 * 300 * 512)):
        if road == "tcp" or name == "bench":
            judge(report(pair.b, name), size, road)
    if road == "tcp":
        judge(service.stop(), 2 * len(VALUE) + 2 * 300 * 512, road)
    else:
        judge(service.stop(), 2 * 300 * 512, road)


@pytest.mark.integrity
@pytest.mark.parametrize("with_library", ["a", "b"])
def test_a_peer_without_the_library(pair, ladder, with_library):
    """One end is preloaded, the other machine knows nothing of it: plain TCP, every byte."""
    service = Service(pair, ladder, preloaded=(with_library,))
    pair.b.run("for i in $(seq 20000); do echo line $i; done >/tmp/lines; chmod 644 /tmp/lines")
    assert service.cli("set", "-x", "set", "lines", stdin="/tmp/lines") == b"OK\n"
    expected = "".join(f"line {i}\n" for i in range(1, 20001)).encode()
    assert service.cli("get", "--raw", "get", "lines") == expected + b"\n"
    at_server = service.stop()
    found = at_server if with_library == "a" else report(pair.b, "get")
    moved = found["bytes"]
    assert moved["sdp_sent"] + moved["sdp_received"] == 0, found
    assert moved["tcp_sent"] + moved["tcp_received"] >= len(expected), found
