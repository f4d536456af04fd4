"""Connections between two network namespaces, with a stand-in for RDMA devices: whatever fails there, every byte arrives.

The library is a build for tests: `sdp-fake-verbs` stands in for libibverbs and the kernel's connection manager, and the
network between the devices is a file that both ends map. `SDP_FAKE_FAIL` makes calls fail in one process.
"""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from support import users as people
from support.limits import now
from support.stage import python

from .harness import SDP, TARGET, seeds

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
PROGRAM = ROOT / "tests" / "machines" / "programs" / "exchange.py"
HANDBACK = PROGRAM.with_name("handback.py")
LIBRARY = TARGET / "debug" / "libsdp.so"
DOCTOR = TARGET / "debug" / "sdp"
NETWORK = TARGET / "debug" / "examples" / "network"
PORT = 7070
LIMIT_S = 30
ADDRESSES = "10.9.0.1", "10.9.0.2"
# All that fail in turn in `sdp-fake-verbs/tests/failures.rs`, within one process; here one of a kind unless all are asked for.
STEPS = "OpenManager Listen Connect Accept CreateQp ToRtr ToErr PostSend PostReceive Poll Arm SendCompletion".split()
OTHERS = """CreateId Bind Query ResolveAddress ResolveRoute Confirm Disconnect InitQpAttr GetEvent DeviceList OpenDevice AllocPd
RegMr CreateChannel CreateCq ToInit ToRts ReceiveCompletion""".split()
IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
# Without these no device is opened, and no connection leaves TCP.
OPENING = "OpenManager Query DeviceList OpenDevice AllocPd RegMr CreateChannel CreateCq".split()
# Without these no ping arrives.
PINGS = "OpenManager CreateSrq Connect CreateQp ToRtr PostSend Poll OpenDevice AllocPd RegMr CreateCq ToInit ToRts".split()
RETRIES_EXCEEDED, EIO, ENOMEM, ECONNRESET = 12, 5, 12, 104

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0,
    reason="needs a network namespace",
)


@functools.cache
def build():
    """What is built for these tests, once; copies of it and of the tests' programs where every user can read them."""
    for what in (["--package", "sdp-preload", "--features", "fake-verbs"],
                 ["--package", "sdp-tools", "--features", "fake-verbs"],
                 ["--package", "sdp-fake-verbs", "--example", "network"]):
        environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}
        subprocess.run(["cargo", "build", "--quiet", *what], cwd=ROOT, env=environment, check=True)
    scratch = tempfile.TemporaryDirectory(prefix="sdp-verbs-")
    folder = people.reachable(Path(scratch.name))
    shutil.copy2(LIBRARY, folder / "libsdp.so")
    shutil.copy2(SDP, folder / "sdp")
    for programs in ("faults/programs", "machines/programs", "oracle", "support"):
        people.shareable(TESTS / programs, folder / programs)
    return scratch


@pytest.fixture(scope="module", autouse=True)
def built():
    return Path(build().name)


class Hosts:
    """Two network namespaces joined by a wire, each with a device. What runs in them is of users of its own, as in production."""

    users = people.SERVANT, people.CLIENT

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.path = Path(self.scratch.name)
        # Programs of all users write here.
        self.path.chmod(0o1777)
        self.holders = [subprocess.Popen(["unshare", "--net", "sleep", "300"]) for _ in ADDRESSES]
        own = os.readlink("/proc/self/ns/net")
        for holder in self.holders:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                time.sleep(0.005)
        a, b = (holder.pid for holder in self.holders)
        self.enter(0, "ip", "link", "add", "wire0", "type", "veth", "peer", "name", "wire1", "netns", str(b))
        for number, address in enumerate(ADDRESSES):
            self.enter(number, "ip", "addr", "add", f"{address}/24", "dev", f"wire{number}")
            for device in (f"wire{number}", "lo"):
                self.enter(number, "ip", "link", "set", device, "up")
        self.network("new", *ADDRESSES)
        self.started = []

    def close(self):
        for process in [*self.started, *self.holders]:
            try:
                os.killpg(process.pid, signal.SIGKILL) if process in self.started else process.kill()
            except ProcessLookupError:
                pass
            process.wait()
        self.scratch.cleanup()

    def inside(self, number, *argv):
        return ["nsenter", f"--net=/proc/{self.holders[number].pid}/ns/net", *map(str, argv)]

    def enter(self, number, *argv):
        subprocess.run(self.inside(number, *argv), check=True)

    def network(self, *words):
        """The stand-in's tool."""
        done = subprocess.run([NETWORK, self.path / "network", *words], check=True, capture_output=True, text=True)
        return done.stdout

    def live(self):
        return json.loads(self.network("live"))

    def wait(self, condition):
        """Until what exists is as is wished."""
        for _ in range(LIMIT_S * 20):
            live = self.live()
            if condition(live):
                return
            time.sleep(0.05)
        raise AssertionError(live)

    def leave_nothing(self):
        """What clients and children had goes; the last one to end may still be on its way out of its place."""
        for _ in range(LIMIT_S * 20):
            left = self.live()
            # Beside each open device is an id that hears of it.
            if left["qps"] <= 1 and left["ids"] - left["contexts"] <= 1 and left["managers"] <= 1:
                return
            time.sleep(0.05)
        raise AssertionError(left)

    def start(self, number, name, *words, fail=(), settings=(), program=PROGRAM, before=(), says="", log=()):
        options = [word for setting in ("fabrics=shm,verbs", *settings) for word in ("--set", setting)]
        options += [word for level in log for word in ("--log", level)]
        files = Path(build().name)
        argv = [*before, *people.words(self.users[number]), files / "sdp", "run", "--no-config", *options,
                "--report", self.path / f"{name}.json", "--",
                python(), files / program.relative_to(TESTS), *words]
        environment = {**os.environ, "SDP_LIBRARY": str(files / "libsdp.so"), "SDP_FAKE_FAIL": ",".join(fail), "SDP_FAKE_SAYS": says,
                       "SDP_FAKE_NETWORK": str(self.path / "network"), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(self.inside(number, *argv), env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def serve(self, *options, **how):
        server = self.start(0, "server", "serve", PORT, *options, **how)
        self.listens()
        return server

    def listens(self):
        """Waits until the server does."""
        listens = ["sh", "-c", f"until ss -Hltn sport = :{PORT} | grep -q .; do sleep 0.02; done"]
        subprocess.run(self.inside(0, *listens), check=True, timeout=LIMIT_S)

    def ask(self, *options, **how):
        return self.start(1, "client", "ask", ADDRESSES[0], PORT, *options, **how)

    def every_byte(self, client):
        out, err = client.communicate(timeout=LIMIT_S)
        assert (client.returncode, out) == (0, "every byte\n"), (client.returncode, out, err)
        return err

    def stop(self, server):
        """The reports of client and server, which agree on how many bytes there were."""
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate(timeout=LIMIT_S)
        client, server = (json.loads((self.path / f"{name}.json").read_text()) for name in ("client", "server"))
        for one, other in ((client["bytes"], server["bytes"]), (server["bytes"], client["bytes"])):
            sent = one["sdp_sent"] + one["tcp_sent"]
            assert sent == other["sdp_received"] + other["tcp_received"], (client, server)
        return client, server

    def pause(self, name="pause"):
        """Waits until the client is in the middle; the file that holds it there."""
        file = self.path / name
        for _ in range(LIMIT_S * 50):
            if file.exists():
                return file
            time.sleep(0.02)
        raise AssertionError("the client never came to its pause")


@pytest.fixture
def hosts():
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()


def by_sdp(report):
    return report["bytes"]["sdp_sent"] + report["bytes"]["sdp_received"]


@pytest.mark.integrity
@pytest.mark.parametrize("options", [(), ("--async",), ("--fork",)], ids=["threads", "asyncio", "fork"])
def test_every_byte(hosts, options):
    """Blocking, through epoll, and in a child for each connection; nothing of a client is left at the server."""
    server = hosts.serve(*options)
    have_met = hosts.path / "met"
    pace = "--rounds", 450, "--connections", 2, "--pace", 0.05, "--pace-until", have_met
    client = hosts.ask(*pace, *(options if "--async" in options else ()))
    hosts.wait(lambda live: live["qps"] == 4)
    have_met.touch()
    hosts.every_byte(client)
    hosts.leave_nothing()
    client, server = hosts.stop(server)
    for report in (client, server):
        assert report["fabrics"]["verbs"] == 2, report
        assert by_sdp(report) > sum(report["bytes"].values()) / 2, report


def test_each_message_is_traced(hosts):
    """`sdp_data_debug_level`: numbers without a gap, and as much payload as was counted, both ways."""
    server = hosts.serve()
    has_met = hosts.path / "met"
    pace = "--rounds", 60, "--size", 100, "--pace", 0.05, "--pace-until", has_met
    client = hosts.ask(*pace, settings=("sdp_data_debug_level=1",), log=("9:stderr",))
    hosts.wait(lambda live: live["qps"] == 2)
    has_met.touch()
    lines = hosts.every_byte(client)
    client, _ = hosts.stop(server)
    form = r"libsdp DATA: fd:\d+ %s mid:0x(..) flags:\d+ bufs:\d+ len:(\d+) mseq:(\d+) mseq_ack:\d+$"
    for direction, counted in ("TX", "sdp_sent"), ("RX", "sdp_received"):
        messages = re.findall(form % direction, lines, re.MULTILINE)
        numbers = [int(number) for *_, number in messages]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), lines
        payload = sum(int(length) - 16 for identifier, length, _ in messages if identifier == "ff")
        assert payload == client["bytes"][counted] > 0, (direction, client["bytes"], lines)


@pytest.mark.integrity
@pytest.mark.parametrize("options", [(), ("--async",)], ids=["threads", "asyncio"])
@pytest.mark.parametrize("poll_us", [0, 20000])
def test_polling_before_a_sleep(hosts, options, poll_us):
    """`recv_poll` bounds it: with 0 every wait sleeps; with much time some waits are over before, even on a busy machine."""
    settings = (f"recv_poll={poll_us}",)
    server = hosts.serve(*options, settings=settings)
    hosts.every_byte(hosts.ask("--rounds", 300, *options, settings=settings))
    client, server = hosts.stop(server)
    for report in (client, server):
        assert by_sdp(report) > 0, report
        waits = report["waits"]
        assert waits["spun"] > 0 if poll_us else waits["spun"] == 0 and waits["slept"] > 0, waits


def fault(step, nth, count=1):
    number = RETRIES_EXCEEDED if step.endswith("Completion") else (EIO, ENOMEM)[nth % 2]
    return f"{step}:{nth}:{count}:{number}"


@pytest.mark.integrity
def test_many_connections_in_little_memory(hosts):
    """Up to 128 queue pairs in a process that may lock 8 MiB; those beyond stay on TCP, with the reason."""
    limits = ["setpriv", "--bounding-set=-ipc_lock", "prlimit", f"--memlock={8 << 20}"]
    server = hosts.start(0, "server", "serve", PORT, "--async", before=limits)
    hosts.listens()
    all_have_met = hosts.path / "all"
    # Rounds until all have met, on a busy machine, too.
    options = ["--connections", 140, "--rounds", 400, "--async", "--pace", 0.1, "--pace-until", all_have_met]
    client = hosts.start(1, "client", "ask", ADDRESSES[0], PORT, *options, before=limits)
    end = now() + LIMIT_S
    while (count := hosts.live()["qps"]) < 2 * 128 and client.poll() is None and now() < end:
        time.sleep(0.1)
    assert count >= 2 * 128
    all_have_met.touch()
    hosts.every_byte(client)
    for report in hosts.stop(server):
        # An attempt that came to nothing may have been among those that were counted.
        assert report["fabrics"]["verbs"] > 120, report
        assert report["reasons"]["limit"] == 12, report
        assert not report["demotions"], report


@pytest.mark.integrity
@pytest.mark.parametrize("step", [*STEPS, *(OTHERS if IS_WHOLE else ())])
def test_a_step_fails(hosts, step):
    """At both ends: the stream stays on TCP or goes back to it."""
    # For ever; in longer runs also once, by turns.
    always = (1 if step in OPENING else 2, 1 << 30)
    for nth, count in [always, *((seed, 1) for seed in seeds(1))][: len(seeds(1))]:
        fail = [fault(step, nth, count)]
        server = hosts.serve(fail=fail)
        hosts.every_byte(hosts.ask("--rounds", 50, fail=fail))
        client, server = hosts.stop(server)
        if step in OPENING and nth == 1:
            assert client["fabrics"]["verbs"] == server["fabrics"]["verbs"] == 0, (client, server)
            assert set(client["reasons"]) & {"no-device", "memlock"}, client
        for report in (client, server):
            assert "protocol-violation" not in {*report["reasons"], *report["demotions"]}, report


@pytest.fixture
def answering(hosts):
    """`sdp doctor --answer` on the first host; a function that asks from the second: the exit code and what it found."""
    def environment(*fail):
        return {**os.environ, "SDP_LIBRARY": str(LIBRARY), "SDP_FAKE_NETWORK": str(hosts.path / "network"),
                "SDP_FAKE_FAIL": ",".join(fail)}

    argv = hosts.inside(0, DOCTOR, "doctor", "--answer", ADDRESSES[0])
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, text=True) as answers:
        line = answers.stdout.readline()
        assert line.startswith(f"answering at {ADDRESSES[0]}:"), line

        def ask(peer=ADDRESSES[0], fail=()):
            argv = hosts.inside(1, DOCTOR, "doctor", "--json", "--peer", peer)
            done = subprocess.run(argv, env=environment(*fail), capture_output=True, text=True, timeout=LIMIT_S, check=False)
            findings = json.loads(done.stdout)["findings"]
            assert answers.poll() is None, "it goes on answering"
            return done.returncode, [f for f in findings if f["check"] == "ping"]

        yield ask
        answers.terminate()


def test_a_ping_is_answered(hosts, answering):
    """As often as asked for, and nothing of it is left."""
    for _ in range(3):
        _, (ping,) = answering()
        assert ping["grade"] == "ok" and f"reaches {ADDRESSES[0]} by RDMA" in ping["what"], ping
    for _ in range(LIMIT_S * 20):
        if hosts.live()["qps"] == 0:
            break
        time.sleep(0.05)
    assert hosts.live()["qps"] == 0


def test_what_a_ping_lacks(hosts, answering):
    """Nobody at the port, no such host, a road that is cut, no device: each is told apart, with what to do there."""
    nobody = "nobody listens at port 9", f"sdp doctor --answer {ADDRESSES[0]}"
    nowhere = "by RDMA", "--answer 10.9.0.77"
    for peer, (what, advice) in ((f"{ADDRESSES[0]}:9", nobody), ("10.9.0.77", nowhere)):
        code, (ping,) = answering(peer)
        assert code == 1 and ping["grade"] == "stop" and what in ping["what"] and advice in ping["advice"], ping
    hosts.network("road", "cut")
    _, (ping,) = answering()
    assert ping["grade"] == "stop", ping
    hosts.network("remove", "1")
    _, (ping,) = answering()
    assert ping["grade"] == "stop" and "no RDMA device" in ping["what"] and "sdp devices" in ping["advice"], ping


@pytest.mark.parametrize("step", [*STEPS, *(OTHERS if IS_WHOLE else ())])
def test_a_ping_whose_step_fails(answering, step):
    """It says so in a sentence; the next one is answered."""
    _, (ping,) = answering(fail=[fault(step, 1, 1 << 30)])
    assert ping["what"], ping
    assert ping["grade"] == "ok" or ping["grade"] == "stop" and ping["advice"], ping
    assert ping["grade"] == "stop" or step not in PINGS, ping
    _, (ping,) = answering()
    assert ping["grade"] == "ok", ping


def group_of(pid):
    """Its process group; none of a process that has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def processes_of(started):
    """What `sdp stat` says of each process with a connection, of those that were started."""
    stat = json.loads(subprocess.run([SDP, "stat", "--json"], check=True, capture_output=True, text=True).stdout)
    groups = {process.pid for process in started}
    return [process for process in stat["processes"] if group_of(process["pid"]) in groups]


def queue_pairs(of):
    """The same, with the queue pairs of those that have any."""
    pairs = lambda process: [c["queue_pair"] for c in process["connections"] if c["queue_pair"]]
    return [(process, pairs(process)) for process in processes_of(of) if pairs(process)]


@pytest.mark.integrity
def test_what_is_told_of_queue_pairs(hosts):
    """Numbers that are each other's, credits, and the device."""
    server = hosts.serve()
    client = hosts.ask("--rounds", 60, "--connections", 2, "--pace", 0.02, "--until", hosts.path / "enough")
    end = now() + LIMIT_S
    have_met = lambda pairs: len(pairs) == 2 and all(pair["own_credits"] and pair["peer_credits"] for pair in pairs)
    while not (len(shown := queue_pairs([server, client])) == 2 and all(have_met(pairs) for _, pairs in shown)):
        assert client.poll() is None and now() < end, shown
    one, other = ({(p["number"], p["peer_number"]) for p in pairs} for _, pairs in shown)
    assert one == {(peer, number) for number, peer in other}, shown
    for process, pairs in shown:
        assert process["device"] == {"name": process["device"]["name"], "retries": 6, "rnr_retries": None, "counted": {}}
        assert process["device"]["name"], process
        for pair in pairs:
            assert 0 < pair["own_credits"] <= 64 and 0 <= pair["peer_credits"] <= 64, pair
        text = subprocess.run([SDP, "stat", "--pid", str(process["pid"])], check=True, capture_output=True, text=True).stdout
        assert process["device"]["name"] in text, text
        for pair in pairs:
            assert f"queue pair {pair['number']} to {pair['peer_number']}" in " ".join(text.split()), text
    (hosts.path / "enough").touch()
    hosts.every_byte(client)
    hosts.stop(server)


@pytest.mark.integrity
def test_the_device_goes_and_comes_back(hosts):
    server = hosts.serve()
    client = hosts.ask("--rounds", 240, "--pause-file", hosts.path / "pause")
    pause = hosts.pause()
    assert hosts.live()["qps"] == 2
    hosts.network("remove", "0")
    pause.unlink()
    hosts.every_byte(client)
    assert hosts.live()["contexts"] <= 1, "the server keeps a device that is gone"
    client, server = hosts.stop(server)
    assert client["fabrics"]["verbs"] == server["fabrics"]["verbs"] == 1
    assert server["demotions"].get("lane-lost", 0) >= 1, server


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["remove", "unplug"])
def test_a_device_that_is_back_is_used_again(hosts, how):
    """It is away while the process looks for it, more than once."""
    server = hosts.serve()
    client = hosts.ask("--rounds", 1200, "--pause-file", hosts.path / "pause", "--pace", 0.01)
    pause = hosts.pause()
    hosts.network(how, "0")
    pause.unlink()
    # Until it was let go, and then for longer than the first look is put off.
    hosts.wait(lambda live: live["contexts"] <= 1)
    time.sleep(1.5)
    hosts.network("add", ADDRESSES[0])
    hosts.wait(lambda live: live["qps"] == 2)
    hosts.every_byte(client)
    client, server = hosts.stop(server)
    for report in (client, server):
        assert report["fabrics"]["verbs"] == 1, report
        # Both halves, before and after.
        assert report["switches"]["promoted"] >= 3, report


@pytest.mark.integrity
@pytest.mark.parametrize("form", [("--async",), (), ("--reads-first",)], ids=["asyncio", "threads", "reads-first"])
@pytest.mark.parametrize("road", ["cut", "mute"])
def test_the_road_ends(hosts, road, form):
    """Messages are lost, or their confirmations are, and no device says so: the watch does. Who has slept in a receive since
    before another thread sent has to be woken for it."""
    server = hosts.serve(*(form if "--async" in form else ()))
    client = hosts.ask("--rounds", 240, "--pause-file", hosts.path / "pause", *form)
    pause = hosts.pause()
    if "--reads-first" in form:
        # For a second after it was woken a reader comes back by itself.
        time.sleep(1.5)
    hosts.network("road", road)
    pause.unlink()
    hosts.every_byte(client)
    client, server = hosts.stop(server)
    assert client["fabrics"]["verbs"] == 1 and by_sdp(client) > 0, client
    assert set(client["demotions"]) & {"lane-lost", "credit"}, client


@pytest.mark.integrity
def test_queue_pairs_that_break(hosts):
    """At both ends at once, while both send; a later attempt brings the lane back."""
    server = hosts.serve()
    # After the pause for longer than an attempt takes.
    client = hosts.ask("--rounds", 240, "--pause-file", hosts.path / "pause", "--pace", 0.01)
    pause = hosts.pause()
    hosts.network("break")
    # Longer than the first attempt is put off.
    time.sleep(1.2)
    pause.unlink()
    hosts.every_byte(client)
    client, server = hosts.stop(server)
    assert by_sdp(client) > 0 and client["demotions"].get("lane-lost", 0) >= 1, client
    assert client["switches"]["promoted"] > 2, client


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["half", "half-child"])
def test_others_answer_who_has_ended_his_stream(hosts, how):
    """The client has shut down its sending side: it cannot answer one who hands the stream back, and need not: a new image,
    or a child and then its parent."""
    server = hosts.serve(how, 120, program=HANDBACK)
    client = hosts.start(1, "client", "ask-half", ADDRESSES[0], PORT, 120, program=HANDBACK)
    hosts.every_byte(client)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 40_000, report
    assert report["bytes"]["tcp_received"] >= 80_000, report


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["mute", "mute-child", "child-mute"])
def test_who_has_ended_his_stream_hands_it_on(hosts, how):
    """It can ask the other end for nothing more. A new image, or a child, takes what that sends, and the end."""
    server = hosts.serve(how, 120, program=HANDBACK)
    client = hosts.start(1, "client", "ask-mute", ADDRESSES[0], PORT, 120, program=HANDBACK)
    hosts.every_byte(client)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 40_000, report


@pytest.mark.integrity
@pytest.mark.parametrize("end", ["before", "behind"])
def test_a_child_sends_while_its_parent_reads(hosts, end):
    """The parent makes no other call: it sleeps in it, or has read the end and waits for the child."""
    server = hosts.serve("split", 120, program=HANDBACK)
    client = hosts.start(1, "client", "ask-split", ADDRESSES[0], PORT, 120, end, program=HANDBACK)
    hosts.every_byte(client)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 20_000, report


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["idle-child", "child", "child-waits", "child-exec", "child-later", "child-after"])
def test_a_fork_copies_a_stream(hosts, how):
    """The first that uses it goes on with it: the parent, or a child, which hands it back to TCP for both."""
    server = hosts.serve(how, 60, program=HANDBACK)
    hosts.every_byte(hosts.start(1, "client", "ask", ADDRESSES[0], PORT, program=HANDBACK))
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 0, report


@pytest.mark.integrity
@pytest.mark.parametrize("step", ["ToRtr", "Confirm"])
def test_a_child_ends_a_stream_that_only_its_end_takes_for_met(hosts, step):
    """The server fails when it has the answer: it shows no PROOF. The child goes on by the carrier; its parent reads the rest."""
    server = hosts.serve("answers", 1000, program=HANDBACK, fail=[fault(step, 1, 1 << 30)])
    hosts.every_byte(hosts.start(1, "client", "ask-forks", ADDRESSES[0], PORT, 300, program=HANDBACK))
    assert server.wait(LIMIT_S) == 0, server.communicate()


@pytest.mark.integrity
def test_a_child_keeps_what_its_parent_read_to_the_end(hosts):
    """The parent has used the stream since the fork, and closes it; the client, which has shut it down, is sent more."""
    server = hosts.serve("child-keeps", 120, program=HANDBACK)
    hosts.every_byte(hosts.start(1, "client", "ask-half", ADDRESSES[0], PORT, 120, program=HANDBACK))
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and report["bytes"]["tcp_received"] >= 80_000, report


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["child-selects", "child-polls", "child-epolls"])
def test_a_child_waits_for_what_is_not_there(hosts, how):
    """Its first wait is a use of the stream: it is not called readable for that."""
    server = hosts.serve(how, 60, program=HANDBACK)
    hosts.every_byte(hosts.start(1, "client", "ask-held", ADDRESSES[0], PORT, 60, program=HANDBACK))
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 0, report


def marked(hosts, count):
    """Waits until markers lie unread at so many connections of the client's host."""
    argv = hosts.inside(1, "ss", "-Htn", "state", "established", "dport", "=", f":{PORT}")
    for _ in range(LIMIT_S * 50):
        unread = [int(line.split()[0]) for line in subprocess.check_output(argv, text=True).splitlines()]
        if sum(n >= 48 for n in unread) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(unread)


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["many", "many-child"])
def test_all_are_asked_before_one_is_waited_for(hosts, how):
    """A new image gets several connections, whose other ends do not answer before they are asked, each of them."""
    server = hosts.serve(how, 120, program=HANDBACK)
    client = hosts.start(1, "client", "ask-many", ADDRESSES[0], PORT, 120, hosts.path / "pause", program=HANDBACK)
    pause = hosts.pause()
    marked(hosts, 3)
    pause.unlink()
    hosts.every_byte(client)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 3 and by_sdp(report) > 3 * 40_000, report


LATE = [
    (how, unread, end)
    for unread, end in [(30_000, "no"), (400_000, "no"), (30_000, "before"), (30_000, "while")]
    for how in ["exec", "pass", "child-late", "child-close"]
] + [("child-both", 30_000, end) for end in ("no", "before")]


@pytest.mark.integrity
@pytest.mark.parametrize(("how", "unread", "end"), LATE)
def test_a_new_holder_of_a_stream_whose_other_end_does_not_answer(hosts, monkeypatch, how, unread, end):
    """The client is somewhere else until the new holder has what was unread, and has answered it; or it has ended its stream. A
    relay reads the markers, also after the process that made it has gone."""
    monkeypatch.setenv("HANDBACK_LATE", f"{hosts.path / 'late'}:{unread}")
    server = hosts.serve(how, 120, program=HANDBACK)
    client = hosts.start(1, "client", "ask-late", ADDRESSES[0], PORT, 120, end, program=HANDBACK)
    if end == "while":
        pause = hosts.pause("late.pause")
        marked(hosts, 1)
        pause.unlink()
    hosts.every_byte(client)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 40_000, report
    assert report["bytes"]["tcp_received"] >= 80_000, report
    report = json.loads((hosts.path / "server.json").read_text())
    # Of each half that was on SDP at that moment. A client that ends its stream meanwhile answers first.
    assert (report["demotions"].get("handover-stuck", 0) in (1, 2)) == (end != "while"), report["demotions"]
    assert sum(report["demotions"].values()) in (1, 2), report["demotions"]


@pytest.mark.integrity
@pytest.mark.parametrize("how", ["exec-much", "pass-much", "child-much", "asks-much", "split-much"])
def test_more_is_unread_than_the_ring_has_room_for(hosts, monkeypatch, how):
    """The client answers, and sends again what goes back to it. No relay is made, which would cost another process of those
    that have the connection its use."""
    monkeypatch.setenv("HANDBACK_MUCH", str(hosts.path / "much"))
    server = hosts.serve(how, 120, program=HANDBACK)
    client = hosts.start(1, "client", "ask-much", ADDRESSES[0], PORT, 120, program=HANDBACK)
    hosts.every_byte(client)
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "client.json").read_text())
    assert report["fabrics"]["verbs"] == 1 and by_sdp(report) > 40_000, report
    report = json.loads((hosts.path / "server.json").read_text())
    assert "handover-stuck" not in report["demotions"], (report["demotions"], report["reasons"])


@pytest.mark.integrity
def test_a_relay_finds_messages_in_the_inbox_of_a_copy(hosts, monkeypatch):
    """The kernel takes no marker when the child wants to leave: what had come to the parent's queue pair is still there."""
    monkeypatch.setenv("HANDBACK_LATE", f"{hosts.path / 'late'}:30000")
    server = hosts.serve("child-full", 120, program=HANDBACK)
    hosts.every_byte(hosts.start(1, "client", "ask-late", ADDRESSES[0], PORT, 120, "no", program=HANDBACK))
    assert server.wait(LIMIT_S) == 0, server.communicate()
    report = json.loads((hosts.path / "server.json").read_text())
    assert "handover-stuck" in report["demotions"], (report["demotions"], report["reasons"])


def test_a_client_is_killed(hosts):
    """What it had goes; the server serves the next one by SDP."""
    server = hosts.serve()
    killed = hosts.ask("--rounds", 240, "--connections", 1, "--pause-file", hosts.path / "pause")
    hosts.pause()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    hosts.path.joinpath("client.json").unlink(missing_ok=True)
    hosts.every_byte(hosts.ask("--rounds", 120))
    hosts.leave_nothing()
    os.killpg(server.pid, signal.SIGTERM)
    server.communicate(timeout=LIMIT_S)
    report = json.loads(hosts.path.joinpath("server.json").read_text())
    assert report["fabrics"]["verbs"] == 2, report


@pytest.mark.integrity
def test_what_a_sender_that_is_killed_may_lose(hosts):
    """Its reader has the first bytes of the stream, and is told of a loss: the end of a stream comes only where every byte
    did that a call had taken, as over TCP."""
    program, enough, accepted = PROGRAM.with_name("killed.py"), hosts.path / "enough", hosts.path / "accepted"
    server = hosts.start(0, "server", "serve", PORT, enough, program=program)
    hosts.listens()
    for size in (100, 4000, 60_000):
        killed = hosts.start(1, "client", "send", ADDRESSES[0], PORT, size, accepted, program=program)
        hosts.pause("enough").unlink()
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        got, error = map(int, server.stdout.readline().split())
        taken = int.from_bytes(accepted.read_bytes(), sys.byteorder)
        accepted.unlink()
        print(size, taken, got, error)
        assert error == ECONNRESET or (error == 0 and got >= taken), (size, taken, got, error)
        assert got >= 300_000, got
    os.killpg(server.pid, signal.SIGTERM)
    server.communicate(timeout=LIMIT_S)
    report = json.loads(hosts.path.joinpath("server.json").read_text())
    assert report["fabrics"]["verbs"] == 3 and by_sdp(report) > 3 * 100_000, report
