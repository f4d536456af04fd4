"""`sdp run --require`: SDP, or a status of its own; what a summary says of settings and reasons."""

import os
import shutil
import subprocess

import pytest

from support.stage import python
from tools.sdp import environment, sdp
from tools.test_tools import PAIR

pytestmark = pytest.mark.quick

NOT_SDP = 123


def run(ladder, *options, command=(), mode="plain", **env):
    """A pair, or another command, that must come to SDP."""
    command = command or [python(), PAIR, mode]
    return sdp(ladder, "run", "--require", *options, "--", *command, stdin=subprocess.DEVNULL, env=environment(**env))


def test_connections_on_sdp_meet_it(ladder):
    """Status and output are the command's; nothing is added."""
    done = run(ladder, "--no-config")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("ready")


def test_what_a_rule_keeps_on_tcp_is_no_failure(ladder):
    """It was asked for."""
    done = run(ladder, "--rule", "use tcp client * *:*", "--rule", "use tcp server * *:*")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "mode, word", [("zerocopy", "zerocopy-option"), ("cat", "standard-descriptor"), ("exclusive", "unsuitable-socket")]
)
def test_a_connection_that_stayed_on_tcp_fails_the_run(ladder, mode, word):
    """With its reason, and what to do about it where there is something."""
    done = run(ladder, "--no-config", mode=mode)
    assert done.returncode == NOT_SDP and f"on TCP: {word}" in done.stderr


def test_a_fabric_that_is_switched_off_fails_the_run(ladder):
    """And the advice is the table's."""
    done = run(ladder, "--no-config", "--set", "fabrics=none")
    assert done.returncode == NOT_SDP and "on TCP: disabled. Look at the tunable fabrics" in done.stderr


ONE_MESSAGE = """
import os, socket
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname()); s, _ = l.accept()
c.sendall(b"x" * 10); assert s.recv(10) == b"x" * 10
"""


def test_young_connections_alone_are_not_enough(ladder):
    """Nothing came to SDP; with lanes at once it does."""
    command = [python(), "-c", ONE_MESSAGE]
    done = run(ladder, "--no-config", command=command)
    assert done.returncode == NOT_SDP and "no connection came to SDP: too-young" in done.stderr
    done = run(ladder, "--no-config", command=["true"])
    assert done.returncode == NOT_SDP and "no connection was seen" in done.stderr


def test_a_command_that_failed_keeps_its_status(ladder):
    """The reasons are told all the same."""
    done = run(ladder, command=["sh", "-c", "exit 7"])
    assert done.returncode == 7 and "no connection was seen" in done.stderr


def test_commands_without_the_library_are_not_started(ladder, tmp_path):
    """Static, and set-id of another user; --tcp makes no sense with it."""
    done = run(ladder, command=[shutil.which("busybox"), "touch", tmp_path / "ran"])
    assert done.returncode == NOT_SDP and "statically" in done.stderr and not (tmp_path / "ran").exists()
    done = run(ladder, command=["no-such-command"])
    assert done.returncode == 127
    assert sdp(ladder, "run", "--require", "--tcp", "true").returncode == 125
    if os.geteuid() == 0:
        other = tmp_path / "other"
        shutil.copy("/bin/true", other)
        os.chown(other, 4242, 4242)
        other.chmod(0o4755)
        done = run(ladder, command=[other])
        assert done.returncode == NOT_SDP and "set-id" in done.stderr


def test_the_summary_names_settings_and_what_to_do(ladder, tmp_path):
    """Each setting that is not the default, with its origin; each reason with its advice."""
    rules = tmp_path / "rules.conf"
    rules.write_text("option ring_bytes 65536\nuse tcp client * *:389\n", encoding="utf-8")
    done = sdp(
        ladder, "run", "--summary", "--config", rules, "--set", "recv_poll=5", "--rule", "use tcp client * *:390",
        "--", python(), PAIR, "zerocopy", stdin=subprocess.DEVNULL, env=environment(SDP_GIVE_BACK="7"),
    )
    assert done.returncode == 0
    for wanted in (
        f"rule file {rules}",
        "1 rule in front (--rule",
        "recv_poll=5 (--set)",
        f"ring_bytes=65536 ({rules}:1)",
        "give_back=7 (environment: SDP_GIVE_BACK)",
        "zerocopy-option: Nothing.",
    ):
        assert wanted in done.stderr, (wanted, done.stderr)
    assert "promote_calls" not in done.stderr
