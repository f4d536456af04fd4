"""`sdp tune` at run time: whom it reaches, what they say, what it changes, and pages that lie."""

import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.stage import python

from tools.schema import faults
from tools.sdp import environment, sdp

pytestmark = pytest.mark.quick

TURNS = Path(__file__).with_name("turns.py")
SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
STOP_LIMIT_S = 20
PAGE_LEN = 4096 + 4096 * 320 + 4096
TEXT_LEN = 512
# Numbers of the last request, of the last that was read, and of what could not be taken; then the request.
BEFORE_TEXT = 16
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of several users and namespaces")


class Turns:
    """The two processes, to talk to."""

    def __init__(self, process):
        self.process = process
        self.pids = []

    def say(self, *words):
        """One order, obeyed."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().split() == [str(w) for w in words]


@contextmanager
def running(ladder, *options, before=(), stderr=None, **env):
    """`turns.py` under `sdp run`; ids are those of its own pid namespace."""
    command = [*before, ladder.artifacts.sdp, "run", *options, "--", python(), TURNS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
    with subprocess.Popen(command, env=environment(**env), text=True, **pipes) as process:
        both = Turns(process)
        try:
            word, child = process.stdout.readline().split()
            assert word == "ready"
            both.pids = [int(child)]
            yield both
            process.stdin.close()
            assert process.wait(STOP_LIMIT_S) == 0
        finally:
            if process.poll() is None:
                process.kill()


def parent_of(pid):
    """A process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def both_pids(both):
    """Parent and child."""
    return [parent_of(both.pids[0]), both.pids[0]]


def stat_of(ladder, pid):
    """What `sdp stat` says of a process."""
    done = sdp(ladder, "stat", "--json", "--pid", pid)
    assert done.returncode == 0, done.stderr
    form = json.loads(done.stdout)
    assert not faults(form, json.loads((SCHEMAS / "stat.json").read_text(encoding="utf-8")))
    return form["processes"][0]


def value_of(ladder, pid, key="recv_poll"):
    """Value and origin of a tunable, as `sdp stat` shows them."""
    (one,) = [t for t in stat_of(ladder, pid)["tunables"] if t["key"] == key]
    return one["value"], one["origin"]


def waits_of(ladder, pid):
    """How often the process's waits ended while it spun, and how often it slept."""
    text = sdp(ladder, "stat", "--prometheus", "--pid", pid).stdout
    lines = [line for line in text.splitlines() if "waits" in line and f'pid="{pid}"' in line]
    return {how: sum(int(line.split()[-1]) for line in lines if f'how="{how}"' in line) for how in ("spun", "slept")}


def tune(ladder, *arguments, code=0):
    """`sdp tune` with `--json`: what each process answered."""
    done = sdp(ladder, "tune", "--json", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    form = json.loads(done.stdout)
    assert not faults(form, json.loads((SCHEMAS / "tune.json").read_text(encoding="utf-8"))), form
    return {one["pid"]: one for one in form["processes"]}


def test_a_value_is_taken_seen_and_felt(ladder):
    """Told to sleep at once, two processes that spun do; the default makes them as they were."""
    with running(ladder) as both:
        pids = both_pids(both)
        assert value_of(ladder, pids[0]) == ("adaptive", "default")
        told = tune(ladder, "--pid", pids[0], "--pid", pids[1], "recv_poll=0")
        assert {pid: one["outcome"] for pid, one in told.items()} == dict.fromkeys(pids, "taken"), told
        assert told[pids[0]]["tunables"] == [{"key": "recv_poll", "value": "0", "origin": "tune"}]
        assert [value_of(ladder, pid) for pid in pids] == [("0", "tune")] * 2
        before = [waits_of(ladder, pid) for pid in pids]
        both.say("turns", 300)
        for was, now in zip(before, [waits_of(ladder, pid) for pid in pids], strict=True):
            assert now["spun"] == was["spun"] and now["slept"] > was["slept"], (was, now)
        assert "recv_poll 0 (tune)" in sdp(ladder, "stat", "--pid", pids[0]).stdout
        told = tune(ladder, "--pid", pids[0], "recv_poll=default")
        assert told[pids[0]]["tunables"] == [{"key": "recv_poll", "value": "adaptive", "origin": "default"}]
        assert value_of(ladder, pids[1]) == ("0", "tune")
        shown = sdp(ladder, "tune", "--pid", pids[1], "recv_poll", "ring_bytes").stdout.splitlines()
        assert [line.split()[2:5] for line in shown] == [["recv_poll", "0", "tune"], ["ring_bytes", "1048576", "default"]]


def test_environment_and_rules_come_behind(ladder):
    """Each with its origin; what has an effect between hosts only says so."""
    options = ["--set", "recv_poll=700", "--rule", "option promote_calls 4"]
    with running(ladder, *options) as both:
        parent = both_pids(both)[0]
        assert value_of(ladder, parent) == ("700", "environment")
        assert value_of(ladder, parent, "promote_calls") == ("4", "rules")
        tune(ladder, "--pid", parent, "recv_poll=5", "promote_calls=9", "debug_level=3")
        assert value_of(ladder, parent) == ("5", "tune")
        assert value_of(ladder, parent, "promote_calls") == ("9", "tune")
        tune(ladder, "--pid", parent, "recv_poll=default", "promote_calls=default")
        assert value_of(ladder, parent) == ("700", "environment")
        assert value_of(ladder, parent, "promote_calls") == ("4", "rules")
        done = sdp(ladder, "tune", "--pid", parent, "sdp_zcopy_thresh=65536")
        assert done.returncode == 0 and "between hosts, where both ends set it" in done.stdout, done.stdout
        assert "sdp_zcopy_thresh 65536 (tune (between hosts" in sdp(ladder, "stat", "--pid", parent).stdout
        for bad in ("recv_poll=-1", "recv_poll=x", "sdp_zcopy_thresh=4095", "nothing=1", "recv_poll="):
            done = sdp(ladder, "tune", "--pid", parent, bad)
            assert done.returncode == 1 and done.stderr, bad
        assert value_of(ladder, parent) == ("700", "environment")


def test_who_waits_elsewhere_takes_it_later(ladder):
    """Requests add up until then; a connection is a moment, too."""
    with running(ladder) as both:
        parent = both_pids(both)[0]
        both.say("block")
        told = tune(ladder, "--pid", parent, "recv_poll=0", code=1)
        assert told[parent]["outcome"] == "pending"
        tune(ladder, "--pid", parent, "promote_calls=3", code=1)
        done = sdp(ladder, "tune", "--pid", parent, "promote_calls=4")
        assert done.returncode == 1 and "not yet" in done.stdout and "1 of 1" in done.stderr, done.stdout
        both.say("connect")
        assert value_of(ladder, parent) == ("0", "tune")
        assert value_of(ladder, parent, "promote_calls") == ("4", "tune")


def test_a_log_that_begins_and_ends_while_the_program_runs(ladder, tmp_path):
    """`sdp_debug_level` asks for a line per connection, where the `log` statement says; its 0 leaves errors."""
    log = tmp_path / "log"
    with open(log, "wb") as stderr, running(ladder, "--log", "9:stderr", stderr=stderr) as both:
        parent = both_pids(both)[0]
        both.say("connect")
        assert log.read_bytes() == b""
        tune(ladder, "--pid", parent, "sdp_debug_level=1")
        both.say("connect")
        lines = log.read_text(encoding="utf-8")
        assert "CONNECT: connected TCP fd:" in lines and "ACCEPT: accepting" in lines
        tune(ladder, "--pid", parent, "sdp_debug_level=default")
        both.say("connect")
        assert log.read_text(encoding="utf-8") == lines


def messages(log):
    """Lines of `sdp_data_debug_level`: {(pid, direction): [(identifier, length, sequence)]}."""
    found = {}
    form = r"\[(\d+)\] libsdp DATA: fd:\d+ ([TR]X) mid:0x(..) flags:\d+ bufs:\d+ len:(\d+) mseq:(\d+) mseq_ack:\d+$"
    for line in log.read_text(encoding="utf-8").splitlines():
        if " DATA: " in line:
            pid, direction, *rest = re.search(form, line).groups()
            found.setdefault((int(pid), direction), []).append((rest[0], int(rest[1]), int(rest[2])))
    return found


def test_messages_are_traced_while_it_is_asked_for(ladder, tmp_path):
    """What one end sent the other one received: each message has a line at both, and none while nobody asks."""
    log = tmp_path / "log"
    with open(log, "wb") as stderr, running(ladder, "--log", "9:stderr", stderr=stderr) as both:
        parent, child = both_pids(both)
        both.say("turns", 3)
        assert log.read_bytes() == b""
        tune(ladder, "--pid", parent, "--pid", child, "sdp_data_debug_level=1")
        both.say("turns", 1)  # a connection in use is traced from its next send or wait on
        log.write_bytes(b"")
        both.say("turns", 5)
        found = messages(log)
        assert set(found) == {(pid, way) for pid in (parent, child) for way in ("TX", "RX")}, found
        for sender, receiver in (parent, child), (child, parent):
            sent = found[sender, "TX"]
            first = sent[0][2]
            assert sent == [("ff", 16 + 8, first + i) for i in range(5)] == found[receiver, "RX"], found
        tune(ladder, "--pid", parent, "--pid", child, "data_debug_level=default")
        both.say("turns", 1)
        log.write_bytes(b"")
        both.say("turns", 5)
        assert log.read_bytes() == b""


@pytest.mark.parametrize("options", [["--set", "sdp_data_debug_level=9"], ["--rule", "option sdp_data_debug_level 1"]], ids=["environment", "rules"])
def test_messages_are_traced_from_the_first(ladder, tmp_path, options):
    log = tmp_path / "log"
    with open(log, "wb") as stderr, running(ladder, "--log", "9:stderr", *options, stderr=stderr) as both:
        parent, child = both_pids(both)
        found = messages(log)
        for sender, receiver in (parent, child), (child, parent):
            sent = found[sender, "TX"]
            assert [sequence for *_, sequence in sent] == list(range(1, len(sent) + 1))
            assert found[receiver, "RX"] == sent
        assert sum(map(len, found.values())) > 200  # of 100 turns, with 16 calls before the lane


def test_parameters_of_the_historic_module_are_hints(ladder, tmp_path):
    """Shown with the command that takes them over; nothing of it is in force."""
    folder = tmp_path / "etc" / "modprobe.d"
    folder.mkdir(parents=True)
    (folder / "ib_sdp.conf").write_text("options ib_sdp recv_poll=700 sdp_zcopy_thresh=-1 debug_level=1\n", encoding="utf-8")
    shown = sdp(ladder, "tune", "--sysroot", tmp_path).stdout
    assert "ib_sdp.conf:1 sets recv_poll of the historic module to 700\n" in shown
    assert "sets sdp_zcopy_thresh of the historic module to -1, which it cannot be here\n" in shown
    assert shown.endswith("sdp tune --save recv_poll=700 sdp_debug_level=1\n"), shown
    form = json.loads(sdp(ladder, "tune", "--json", "--sysroot", tmp_path, "recv_poll").stdout)
    assert not faults(form, json.loads((SCHEMAS / "tune.json").read_text(encoding="utf-8")))
    assert [(h["key"], h["value"]) for h in form["hints"]] == [("recv_poll", "700")]
    assert [(t["value"], t["origin"]["kind"]) for t in form["tunables"]] == [("adaptive", "default")]


def test_whom(ladder):
    """There must be somebody, and it must be said whom."""
    done = sdp(ladder, "tune", "recv_poll=1")
    assert done.returncode == 1 and all(word in done.stderr for word in ("--pid", "--all", "--save"))
    done = sdp(ladder, "tune", "--pid", os.getpid(), "recv_poll=1")
    assert done.returncode == 1 and "no counters" in done.stderr
    done = sdp(ladder, "tune", "--pid", 2**22, "recv_poll=1")
    assert done.returncode == 1 and "no such process" in done.stderr
    assert sdp(ladder, "tune", "--user", "no-such-user", "recv_poll=1").returncode == 2


@ROOT
def test_all_and_a_users(ladder):
    """In a pid namespace, so that nobody else's are meant."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with running(ladder, before=apart) as both:
        holder = Path(f"/proc/{both.process.pid}/task/{both.process.pid}/children").read_text(encoding="ascii").split()[0]
        inside = ["nsenter", "--pid", "--mount", "--target", holder, ladder.artifacts.sdp]

        def ask(*arguments, code):
            done = subprocess.run(
                [*inside, "tune", "--json", *arguments],
                capture_output=True, env=environment(), check=False, text=True, timeout=STOP_LIMIT_S,
            )
            assert done.returncode == code, done.stdout + done.stderr
            return [one["outcome"] for one in json.loads(done.stdout)["processes"]] if done.stdout else []

        assert ask("--all", "recv_poll=3", code=0) == ["taken"] * 2
        assert ask("--user", "root", "recv_poll=4", code=0) == ["taken"] * 2
        assert ask("--user", "games", "recv_poll=5", code=1) == []


@ROOT
def test_another_users_process(ladder):
    """Is not asked."""
    with running(ladder) as both:
        parent = both_pids(both)[0]
        user = ["setpriv", "--reuid=games", "--regid=games", "--clear-groups"]
        done = sdp(ladder, "tune", "--pid", parent, "recv_poll=1", before=user)
        assert done.returncode == 1 and "another user's" in done.stderr, done.stderr
        assert value_of(ladder, parent) == ("adaptive", "default")


def page_of(pid):
    """The path of a process's page, and where its words for requests begin."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        if os.readlink(path) == "/memfd:sdp-stats (deleted)":
            with open(path, "rb") as page:
                return path, page.read().index(b"sdp_zcopy_thresh ") - TEXT_LEN - BEFORE_TEXT
    raise AssertionError("no page")


def test_rubbish_asked_for(ladder):
    """The process's own user writes anything into its page, without end: every byte arrives, and each setting is judged."""
    with running(ladder) as both:
        pids = both_pids(both)
        chance = random.Random(26)
        path, at = page_of(pids[0])
        texts = [b"recv_poll 7;", b"ring_bytes 65536;", b"fabrics none;", b"x" * TEXT_LEN, b";" * TEXT_LEN, b"recv_poll"]
        with open(path, "r+b", buffering=0) as page:
            for number in range(1, 400):
                text = bytearray(chance.choice(texts) * 3).ljust(TEXT_LEN, b"\0")[:TEXT_LEN]
                for _ in range(chance.choice((0, 3, 300))):
                    text[chance.randrange(TEXT_LEN)] = chance.randrange(256)
                os.pwrite(page.fileno(), text, at + BEFORE_TEXT)
                os.pwrite(page.fileno(), number.to_bytes(4, sys.byteorder), at)
                if number % 20 == 0:
                    both.say("turns", 5)
            # Also beside the text: answers, and what is said to be in force.
            os.pwrite(page.fileno(), chance.randbytes(BEFORE_TEXT + 2 * TEXT_LEN), at)
            both.say("turns", 50)
            told = sdp(ladder, "tune", "--pid", pids[0])
            assert told.returncode == 0 and told.stdout.isprintable() is False and "\x1b" not in told.stdout
            page.seek(at)
        stat_of(ladder, pids[0])
        both.say("turns", 50)


def test_a_page_that_lies(ladder, tmp_path):
    """A program that pretends to have a page, with anything in it, is shown as it is; nothing else is written to."""
    code = (
        "import fcntl, os, sys, time\n"
        "fd = os.memfd_create('sdp-stats', os.MFD_ALLOW_SEALING)\n"
        "os.ftruncate(fd, int(sys.argv[1]))\n"
        "os.pwrite(fd, sys.stdin.buffer.read(), 0)\n"
        "fcntl.fcntl(fd, 1033, int(sys.argv[2]))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    assert fcntl.F_ADD_SEALS == 1033
    sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    with running(ladder) as both:
        path, at = page_of(both_pids(both)[0])
        with open(path, "rb") as page:
            true = page.read()

    def asked(content, length=PAGE_LEN, seals=sealed):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", code, str(length), str(seals)], **pipes) as process:
            try:
                process.stdin.write(content)
                process.stdin.close()
                assert process.stdout.readline() == b"ready\n"
                done = sdp(ladder, "tune", "--pid", process.pid, "recv_poll=1")
                assert done.returncode == 1 and "\x1b" not in done.stdout, done.stdout + done.stderr
                assert sdp(ladder, "stat", "--pid", process.pid).returncode in (0, 1)
                return done.stdout + done.stderr
            finally:
                process.send_signal(signal.SIGKILL)

    assert "not yet" in asked(true), "it never answers"
    nothing = bytearray(true)
    nothing[at : at + BEFORE_TEXT + 2 * TEXT_LEN] = bytes(BEFORE_TEXT + 2 * TEXT_LEN)
    assert "takes no tunables at run time" in asked(bytes(nothing)), "an older library's page"
    assert "its page is none" in asked(true, seals=fcntl.F_SEAL_SEAL)
    assert "no counters" in asked(random.Random(1).randbytes(PAGE_LEN))
    assert "no counters" in asked(true, length=PAGE_LEN + 4096)
    rubbish = bytearray(true)
    rubbish[at : at + BEFORE_TEXT + 2 * TEXT_LEN] = random.Random(2).randbytes(BEFORE_TEXT + 2 * TEXT_LEN)
    asked(bytes(rubbish))
