"""A rule file that changes holds for new connections within a second; one that cannot be taken changes nothing."""

import json
import os
import subprocess
import sys

import pytest

from .harness import EAGER, SDP, scenario

STRICT = "use sdp client * *:*\n"


def told(name, *args, file, text=STRICT):
    """What a scenario saw, under a rule file of this text."""
    file.write_text(text, encoding="utf-8")
    outcome = scenario("reload", name, *args, env=EAGER, rules=file, options=[])
    return json.loads(outcome.out.splitlines()[-1])


@pytest.fixture(name="file")
def rule_file(tmp_path):
    """A place for a rule file."""
    return tmp_path / "rules.conf"


@pytest.mark.parametrize("how", ["write", "rename", "remove", "empty"])
def test_changes(how, file):
    assert told("changes", how, file=file) == ["ECONNREFUSED", "talked", "ECONNREFUSED"]


@pytest.mark.parametrize("what", ["errors", "fifo", "directory"])
def test_broken(what, file):
    """The former rules hold, whole, until there is a file that can be taken."""
    assert told("broken", what, file=file) == ["ECONNREFUSED", "ECONNREFUSED", "talked"]


def test_options(file):
    assert told("options", file=file) == ["talked", "ENETUNREACH"]


def test_child(file):
    assert told("child", file=file) == ["ECONNREFUSED", "talked", "talked"]


def test_listener(file):
    """The first connection under the new rules brings the listener up to date; strict clients see that."""
    seen = told("listener", file=file)
    assert seen == ["talked", "talked", "ECONNREFUSED"]


def test_threads(file):
    assert set(told("threads", file=file)) <= {"ECONNREFUSED", "talked"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its root directory")
def test_root(file):
    assert told("root", file=file) == ["ECONNREFUSED", "ECONNREFUSED"]


def test_relative(tmp_path, monkeypatch):
    """Such a name means another file in another working directory."""
    (tmp_path / "rules.conf").write_text(STRICT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    outcome = scenario("reload", "relative", env=EAGER, rules="rules.conf", options=[])
    assert json.loads(outcome.out.splitlines()[-1]) == ["ECONNREFUSED", "ECONNREFUSED"]


def test_calls(file):
    """Looks at the file are few: one for many connections in a row."""
    file.write_text("use both client * *:*\n", encoding="utf-8")
    log = file.with_name("calls")
    code = (
        "import socket,time\n"
        "a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()\n"
        "end = time.monotonic() + 1.5\n"
        "n = 0\n"
        "while time.monotonic() < end:\n"
        "    b = socket.create_connection(a.getsockname()); c = a.accept()[0]; b.close(); c.close(); n += 1\n"
        "print(n)"
    )
    words = [SDP, "run", "--config", file, "strace", "-f", "-o", log, "-e", "trace=%%stat", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, timeout=60, check=True)
    looks = sum(str(file) in line for line in log.read_text().splitlines())
    assert 1 <= looks <= 6, f"{looks} looks for {done.stdout.decode()} connections"
