"""Programs under `sdp run` on two machines, and what of theirs the kernels saw as TCP and as RDMA."""

import functools
import json
import shlex
import warnings
from pathlib import Path

from machines.shown import Shown
from machines.test_programs import report

PULSE = Path(__file__).parent / "programs" / "pulse.py"
SETTINGS = ("--set", "fabrics=shm,verbs")
# What the second machine's network card carries, each way: packets and bytes of IP.
COUNTERS = """
table inet wire {
 counter tcp_in { }
 counter tcp_out { }
 counter rdma_in { }
 counter rdma_out { }
 chain in { type filter hook input priority 0;
  iifname eth0 meta l4proto tcp counter name tcp_in; iifname eth0 udp dport 4791 counter name rdma_in; }
 chain out { type filter hook output priority 0;
  oifname eth0 meta l4proto tcp counter name tcp_out; oifname eth0 udp dport 4791 counter name rdma_out; }
}
"""
# Of a TCP packet at least: IP, TCP, time stamps.
TCP_HEADER = 52
# Markers and what TCP sent again.
SLACK = 4096
# A server has read the rest of a stream, whose client is gone, before it closes its own end. Not all do.
HAS_CLOSED = """
for i in $(seq 200); do
    [ -n "$(ss -Htn state established state close-wait 'sport = :%d')" ] || break; sleep 0.1
done
"""
# What a segment that is sent again has at most.
SEGMENT = 1500
# So often a test is played whose lanes were lost.
PLAYS = 3
# What a half that leaves its queue pair may send a second time: all that the peer has not acknowledged, which is kept.
RESUMED = 131_072 + SLACK


class LanesLost(AssertionError):
    """Too little went over queue pairs. Some were lost, and a machine stood still: both share a host, and one that does so
    for 600 ms does not acknowledge what soft-RoCE sends again."""


def undisturbed(test):
    """The test is played until no lane is lost in it; it fails if that is so in each of [`PLAYS`]. Whatever else it
    finds fails at once."""

    @functools.wraps(test)
    def plays(*, ends, **fixtures):
        for left in reversed(range(PLAYS)):
            try:
                return test(ends=ends, **fixtures)
            except LanesLost as why:
                if not left:
                    raise
                warnings.warn(f"played again, for lanes were lost: {why}", stacklevel=2)
                ends.wire.begin()

    return plays


class Wire:
    """What crosses between the machines, by the kernel of the second one."""

    def __init__(self, pair):
        self.pair, self.guest = pair, pair.b
        self.guest.run(f"nft list table inet wire >/dev/null 2>&1 || nft {shlex.quote(COUNTERS)}")
        self.pulses = [machine.start(f"rm -f /tmp/pulse; exec /usr/bin/python3 {PULSE} /tmp/pulse") for machine in self.machines()]
        self.begin()

    def machines(self):
        return self.pair.a, self.pair.b

    def begin(self):
        """What was counted so far does not count."""
        self.guest.run("nft reset counters >/dev/null")
        self.resent()
        self.still()

    def close(self):
        """Ends what watches the machines."""
        for machine, pulse in zip(self.machines(), self.pulses, strict=True):
            machine.run(f"pkill -x {PULSE.stem}", ok=(0, 1))
            pulse.wait()

    def still(self):
        """How long a machine stood still, each time that it did, since the last time."""
        told = [machine.run("cat /tmp/pulse && : >/tmp/pulse", ok=(0, 1)).text.split() for machine in self.machines()]
        return [float(word) for words in told for word in words]

    def resent(self):
        """Segments that the kernels' TCP has sent again since the last time."""
        asked = [machine.run("nstat -z TcpRetransSegs | awk '/TcpRetransSegs/ { print $2 }'") for machine in self.machines()]
        return sum(int(done.text) for done in asked)

    def count(self):
        """(payload over TCP, at most; bytes in RDMA's packets) since the last time."""
        form = json.loads(self.guest.run("nft -j reset counters").out)
        found = {c["counter"]["name"]: c["counter"] for c in form["nftables"] if "counter" in c}
        tcp = sum(found[name]["bytes"] - TCP_HEADER * found[name]["packets"] for name in ("tcp_in", "tcp_out"))
        return tcp, sum(found[name]["bytes"] for name in ("rdma_in", "rdma_out"))


def sums(end, way):
    """Bytes of a report, over both lanes."""
    return end["bytes"][f"sdp_{way}"] + end["bytes"][f"tcp_{way}"]


class Ends(Shown):
    """One server on machine `a`, clients on `b`, each of its own user; where the payload went, by three witnesses: both
    reports, and the kernel's counters."""

    def __init__(self, pair, ladder, settings=SETTINGS):
        super().__init__(pair, ladder.artifacts.sdp)
        self.settings = settings
        self.wire = Wire(pair)
        self.server = self.stopper = self.killer = self.port = None

    def command(self, name, words):
        """A command under `sdp run`."""
        run = [self.sdp, "run", *self.settings, "--report", f"/tmp/{name}.json", "--", *words]
        return shlex.join(map(str, run))

    def serve(self, words, user, port, stop="TERM", before=""):
        """Starts the server, whose first process has the name of its program."""
        program = str(words[0]).rpartition("/")[2]
        self.stopper, self.killer = (f"pkill -{signal} {which} -x {program}" for signal, which in ((stop, "-o"), ("KILL", "")))
        self.pair.a.run("rm -f /tmp/server.json")
        self.port = port
        self.server = self.pair.a.start(before + "exec " + self.command("server", words), user=user)
        self.pair.a.wait_listening(port)

    def begin(self, words, user="games", stdin=None):
        """Starts a client."""
        line = self.command("client", words) + (f" <{stdin}" if stdin else "")
        self.pair.b.run("rm -f /tmp/client.json")
        return self.pair.b.start(line, user)

    def end(self, asked, limit_s=120, ok=(0,)):
        """Waits for its end; what it printed, and its report."""
        done = asked.wait(limit_s)
        assert done.status in ok, done
        return done, report(self.pair.b, "client")

    def ask(self, words, user="games", limit_s=120, stdin=None, ok=(0,)):
        """Runs a client to its end."""
        return self.end(self.begin(words, user, stdin), limit_s, ok)

    def stop(self, ok=(0,)):
        """Ends the server when it has read its connections to their end, for so long as that may take; its report."""
        self.pair.a.run(HAS_CLOSED % self.port)
        self.pair.a.run(self.stopper, ok=(0, 1))
        server, self.server = self.server, None
        done = server.wait()
        assert done.status in ok, done
        return report(self.pair.a, "server")

    def close(self):
        """Ends what a test that failed has left, and what watched the machines."""
        self.wire.close()
        if self.server:
            self.pair.a.run(self.killer, ok=(0, 1))

    def judge(self, server, clients, share, connections=1, is_whole=True, last=0):
        """Both ends used queue pairs, and agree; the kernel saw no more TCP than the reports say, and what they
        call SDP as RDMA. `is_whole`: all that was sent was received. `last`: the most bytes of a message with which a stream
        ends; without an acknowledgement they go once more by TCP, behind the end of the queue pair."""
        print(json.dumps([server, *clients]))
        tcp, rdma = self.wire.count()
        by = {lane: sum(c["bytes"][f"{lane}_{way}"] for c in clients for way in ("sent", "received")) for lane in ("sdp", "tcp")}
        resent = self.wire.resent()
        print(json.dumps({"kernel": {"tcp": tcp, "rdma": rdma, "resent": resent}, "clients": by}))
        for end in (server, *clients):
            assert end["fabrics"]["shm"] == 0, end
        met = sum(c["fabrics"]["verbs"] for c in clients)
        assert server["fabrics"]["verbs"] >= connections and met >= connections, (server, clients)
        assert rdma >= by["sdp"], (rdma, by)
        # A resumed half sends again what was not acknowledged.
        resumes = sum(n for end in (server, *clients) for n in end["demotions"].values())
        most = 1.05 * by["tcp"] + SLACK + RESUMED * resumes + SEGMENT * resent + 2 * connections * last
        assert tcp <= most, (tcp, by, resumes, resent)
        if is_whole:
            for one, other in (("sent", "received"), ("received", "sent")):
                assert sums(server, one) == sum(sums(c, other) for c in clients), (server, clients)
        self.check_share((server, *clients), by["sdp"], by["tcp"], share)

    def check_share(self, ends, sdp, tcp, share):
        """Of the bytes `sdp` and `tcp` that `ends` moved so large a share went over queue pairs."""
        if sdp < share * (sdp + tcp):
            lost = sum(end["demotions"].get("lane-lost", 0) for end in ends)
            still = self.wire.still()
            raise (LanesLost if lost and still else AssertionError)((sdp, tcp, lost, still, ends))
