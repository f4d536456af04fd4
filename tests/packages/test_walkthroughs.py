"""docs/walkthroughs.md, run as it is written: each command prints what the page says, and the bytes went where it says."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from support.limits import now

from .root import Root, one

PAGE = Path(__file__).resolve().parents[2] / "docs" / "walkthroughs.md"
FOLDER = "/tmp/walk"
# Who a prompt stands for.
PROMPTS = {"root#": "root", "user$": "games", "postgres$": "postgres"}
# How long something that was begun beside may take until a command sees it.
BEGUN_S = 20

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="installs packages in a root of its own")


class Step:
    """A command, who gives it, and what it prints."""

    def __init__(self, user, command):
        self.user, self.command, self.lines = user, command, []

    def shape(self):
        """What the output has to look like."""
        words = " ".join("\n".join(self.lines).replace("\n", " \n ").split(" "))
        return re.compile(re.escape(squeezed(words)).replace("…", ".*?"), re.DOTALL)


def squeezed(text):
    """Runs of blanks are one; none at the end of a line."""
    return re.sub(r" *\n *", "\n", re.sub(r"[ \t\r]+", " ", text)).strip()


def walks():
    """The steps of each part of the page, by its title."""
    found = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        steps = found.setdefault(part.split("\n", 1)[0], [])
        for block in re.findall(r"^```console\n(.*?)^```$", part, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                prompt, _, command = line.partition(" ")
                if prompt in PROMPTS:
                    steps.append(Step(PROMPTS[prompt], command))
                elif prompt == ">":  # one that is empty has no blank behind it
                    steps[-1].command += "\n" + command
                else:
                    steps[-1].lines.append(line)
    return found


class Walk:
    """One part, on its way."""

    def __init__(self, root, packages):
        self.root = root
        folder = root.path(FOLDER)
        folder.mkdir()
        folder.chmod(0o1777)
        shutil.copy(one(packages, ".deb"), folder)
        self.beside = []
        self.is_waiting = False

    def words(self, step):
        """The command as its user's shell runs it, in the folder that is also its home."""
        command = step.command.strip().removesuffix("&")
        user = [] if step.user == "root" else ["setpriv", f"--reuid={step.user}", f"--regid={step.user}", "--init-groups"]
        return [*user, "env", f"HOME={FOLDER}", "sh", "-c", f"cd {FOLDER}\n{command}"]

    def take(self, step):
        """Runs one step. After something was begun, here or as a service, it is tried again until it sees that, for a
        while."""
        self.is_waiting |= step.command.startswith("service ") or step.command.endswith("&")
        if step.command.endswith("&"):
            log = self.root.path(FOLDER) / f"beside-{len(self.beside)}"
            with open(log, "wb") as out:
                self.beside.append(self.root.start(*self.words(step), stdout=out, stderr=out, stdin=subprocess.DEVNULL))
            return
        end = now() + (BEGUN_S if self.is_waiting else 0)
        while True:
            done = self.root.run(*self.words(step), env={"DEBIAN_FRONTEND": "noninteractive"}, check=False)
            seen = squeezed(done.stdout)
            if step.shape().fullmatch(seen):
                return
            if now() > end:
                raise AssertionError(f"{step.user}: {step.command}\nprinted\n{seen}\n{done.stderr}\nexpected\n{step.lines}")
            time.sleep(0.1)

    def report(self, name):
        """A report that was written on the way; its writer may still be at it."""
        path = self.root.path(FOLDER) / name
        end = now() + BEGUN_S
        while True:
            try:
                return json.loads(path.read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):
                assert now() < end, name
                time.sleep(0.05)


@pytest.fixture(name="walk")
def _walk(packages):
    with tempfile.TemporaryDirectory(prefix="sdp-walk-") as folder:
        root = Root(folder, is_apart=True)
        try:
            yield Walk(root, packages)
        finally:
            root.close()


def moved(report, lane):
    """Bytes of a report on a lane."""
    return report["bytes"][f"{lane}_sent"] + report["bytes"][f"{lane}_received"]


def play(walk, title):
    """Every step of a part."""
    for step in walks()[title]:
        walk.take(step)


def test_every_part_is_run():
    """No command stands on the page outside of what is run."""
    text = PAGE.read_text(encoding="utf-8")
    steps = [step for part in walks().values() for step in part]
    assert list(walks()) == ["A database and its clients", "NetPIPE", "Conversion, rules, measurements"]
    assert sum(text.count(f"\n{prompt} ") for prompt in PROMPTS) == len(steps)
    assert text.count("\n```") == 2 * text.count("\n```console\n")


def test_a_database_and_its_clients(walk):
    """The same batch over both; over SDP nearly all of it."""
    play(walk, "A database and its clients")
    sdp, tcp = walk.report("sdp.json"), walk.report("tcp.json")
    assert moved(sdp, "sdp") > 100 * 4000 and moved(sdp, "tcp") < moved(sdp, "sdp") / 10, sdp
    assert moved(tcp, "sdp") == 0 and moved(tcp, "tcp") > 100 * 4000, tcp
    assert set(tcp["reasons"]) == {"rule-tcp"}, tcp


def test_netpipe(walk):
    """Both ends of the second run."""
    play(walk, "NetPIPE")
    for name in ("client.json", "server.json"):
        report = walk.report(name)
        assert report["connections"]["tcp"] == 0, report
        assert moved(report, "sdp") > 100 * moved(report, "tcp") > 0, report


def test_conversion_rules_measurements(walk):
    """A program that asks for SDP gets it; so does one for which rules ask."""
    play(walk, "Conversion, rules, measurements")
    talk = walk.report("talk.json")
    assert talk["connections"] == {"seen": 1, "sdp": 1, "tcp": 0}, talk
    for name in ("client.json", "shared.json"):
        report = walk.report(name)
        assert report["bytes"]["sdp_sent"] > 32 << 20 and not report["reasons"], report
