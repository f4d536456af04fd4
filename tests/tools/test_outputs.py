"""What the tools say where it is easily wrong or lost: output that cannot be written, nothing to show, the other
end's reason, leavings."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.procs import wait_until
from support.stage import python
from tools.sdp import environment, sdp
from tools.test_tools import PAIR, pair, stat

pytestmark = pytest.mark.quick

LIMIT_S = 60
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces and other users")
COMMANDS = [
    ["stat"], ["stat", "--json"], ["stat", "--prometheus"], ["doctor"], ["doctor", "--json"], ["devices"], ["tune"],
    ["tune", "--json"], ["top", "--once", "--interval", "0.05"], ["top", "--json", "--interval", "0.05"],
    ["config", "show"], ["config", "check"], ["explain", "x", "127.0.0.1:1"], ["--help"], ["stat", "--help"], ["--version"],
    ["run", "--help"],
]


def shell(ladder, script, *arguments, tool="sdp", **env):
    """A shell's line about a tool."""
    program = ladder.artifacts.dir / tool
    return subprocess.run(
        ["sh", "-c", script, program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=LIMIT_S,
        env=environment(**env),
    )


@pytest.mark.parametrize("where, why", [("/dev/full", "No space left on device"), ("&-", "Bad file descriptor")])
def test_lost_output_is_a_failure_of_every_command(ladder, where, why):
    """A full disk, and no standard output at all: status 1 and one line."""
    for arguments in COMMANDS:
        done = shell(ladder, f'"$0" "$@" >{where}', *arguments)
        assert done.returncode == 1, (arguments, done)
        assert done.stderr.splitlines()[-1] == f"standard output cannot be written: {why}", (arguments, done)
    done = shell(ladder, f'"$0" "$@" >{where}', "-San", tool="sdpnetstat")
    assert done.returncode == 1 and why in done.stderr
    # A command's status stays the command's.
    done = shell(ladder, f'"$0" "$@" >{where}', "run", "--report", "-", "--", "true")
    assert done.returncode == 0, done


def test_a_reader_that_has_gone_is_no_error(ladder):
    """Silence, and the usual status."""
    for arguments in (["stat", "--help"], ["explain", "x", "127.0.0.1:1"], ["tune"]):
        done = shell(ladder, '{ "$0" "$@"; echo "status $?" >&2; } | true', *arguments)
        assert done.stderr == "status 0\n", done


def test_a_file_is_converted_in_place(ladder, tmp_path):
    """By the shell it would be emptied: that is said. With --output it takes its place when it is whole."""
    rules = tmp_path / "libsdp.conf"
    text = "match destination 10.0.0.0/8:*\n"
    rules.write_text(text, encoding="utf-8")
    done = shell(ladder, '"$0" config convert --to use "$1" >>"$1"', rules)
    assert done.returncode == 1 and "--output" in done.stderr, done
    assert rules.read_text(encoding="utf-8") == text
    done = sdp(ladder, "config", "convert", "--to", "use", "--output", rules, rules)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "use sdp client * 10.0.0.0/8:*" in rules.read_text(encoding="utf-8")


ALONE = ["unshare", "--pid", "--fork", "--mount-proc"]


@as_root
def test_nothing_to_show_is_said(ladder):
    """Where no process has the library; to another user, that there may be others."""
    done = sdp(ladder, "stat", before=ALONE)
    assert (done.returncode, done.stdout) == (0, "no process with the library has a stream connection\n")
    user = ["setpriv", "--reuid=games", "--regid=games", "--clear-groups"]
    assert "shown to root only" in sdp(ladder, "stat", before=[*ALONE, *user]).stdout
    tool = ladder.artifacts.dir / "sdpnetstat"
    done = subprocess.run([*ALONE, tool, "-Sn"], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stderr == "sdpnetstat: no connection of a process with the library\n"
    assert len(done.stdout.splitlines()) == 2, "the columns stay as they are"


IN_IT = """
"$0" run --tcp -- "$1" "$2" </dev/zero >"$4" & until test -s "$4"; do sleep 0.05; done; "$3" -Sn; kill $!
"""


@as_root
def test_connections_on_tcp_are_counted_with_their_reasons(ladder, tmp_path):
    """By sdpnetstat, which shows none of them."""
    tool = ladder.artifacts.dir / "sdpnetstat"
    command = [*ALONE, "sh", "-c", IN_IT, ladder.artifacts.sdp, python(), PAIR, tool, tmp_path / "ready"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment())
    assert "2 connection ends with the library are on TCP: rule-tcp 2" in done.stderr, done


def test_the_other_ends_reason_is_shown_beside_ours(ladder):
    """A rule of the server keeps its client on TCP, whose own reason does not say so."""
    with pair(ladder, "--no-config", "--rule", "use tcp server * *:*") as (parent, child, _, _):
        (connection,) = wait_until(
            lambda: (found := stat(ladder, child)["connections"]) and found[0]["send"]["reason"] and found, "a reason"
        )
        assert connection["send"]["reason"] != "rule-tcp"
        peer = connection["peer"]
        assert (peer["pid"], peer["uid"]) == (parent, os.geteuid())
        assert (peer["send_reason"], peer["receive_reason"]) == ("rule-tcp", "rule-tcp")
        says = f"the other end, process {parent} "
        text = " ".join(sdp(ladder, "stat", "--pid", child).stdout.split())
        assert says in text and "says: rule-tcp" in text
        findings = json.loads(sdp(ladder, "doctor", "--json", "--pid", child).stdout)["findings"]
        (found,) = [f for f in findings if f["check"] == "connections"]
        assert found["grade"] == "note" and says in found["what"] and "rule-tcp" in found["what"]


def test_the_commonest_reasons_name_what_they_can_be(ladder):
    """The unit settings of services among them; nobody is told to run both ends as one user."""
    reasons = {r["word"]: r["what"] + " " + r["advice"] for r in json.loads(sdp(ladder, "describe").stdout)["reasons"]}
    for word in ("library", "rules", "RestrictAddressFamilies", "AF_UNIX", "PrivateUsers", "namespace"):
        assert word in reasons["peer-not-listening"], word
    assert "PrivateUsers" in reasons["uid-unmapped"]
    assert "network namespace" in reasons["remote-peer"] and "--network=container:" in reasons["remote-peer"]
    assert "one user id" not in reasons["uid-differs"]


def test_strict_clients_are_warned_of(ladder, tmp_path):
    """As strict servers are."""
    rules = tmp_path / "libsdp.conf"
    rules.write_text("use sdp client * *:5432\n", encoding="utf-8")
    said = sdp(ladder, "config", "check", rules).stdout
    assert "[strict-client]" in said and "[strict-server]" not in said
    assert "[strict-client]" in sdp(ladder, "explain", "--config", rules, "psql", "10.0.0.1:5432").stdout
    assert "[strict-client]" not in sdp(ladder, "explain", "--config", rules, "psql", "10.0.0.1:5433").stdout


def test_explain_knows_the_directory_of_containers(ladder, tmp_path, request):
    """Whether ends in two containers meet, by the same tunable that the library goes by; nothing of it where a rule says tcp."""
    rules = tmp_path / "libsdp.conf"
    base = Path(tempfile.mkdtemp(prefix="meet-"))  # the path of a directory is short
    request.addfinalizer(lambda: shutil.rmtree(base, True))
    place = base / "sdp"

    def says(address, where=place):
        rules.write_text(f"option rendezvous_dir {where}\nuse tcp client * *:389\n", encoding="utf-8")
        return sdp(ladder, "explain", "--config", rules, "psql", address).stdout

    assert f"TCP, there is no {place}" in says("10.0.0.1:5432")
    place.mkdir()
    place.chmod(0o1733)
    assert f"SDP if it has {place}, too" in says("10.0.0.1:5432")
    assert "container" not in says("10.0.0.1:389") + says("127.0.0.1:5432")
    place.chmod(0o777)
    assert f"TCP, {place} has mode 777" in says("10.0.0.1:5432")
    assert "TCP, rendezvous_dir is none" in says("10.0.0.1:5432", "none")
    env = environment(SDP_RENDEZVOUS_DIR="/nonexistent/sdp")
    assert "no /nonexistent/sdp" in sdp(ladder, "explain", "--config", rules, "psql", "10.0.0.1:5432", env=env).stdout


def test_a_folder_behind_trace_is_no_command(ladder, tmp_path):
    """The value needs an equals sign, as the help has it."""
    done = sdp(ladder, "run", "--trace", tmp_path, "--", "true")
    assert done.returncode == 125 and f"--trace={tmp_path}" in done.stderr, done
    assert sdp(ladder, "run", f"--trace={tmp_path}", "--", "true").returncode == 0


def test_what_a_killed_run_left_is_removed(ladder, tmp_path):
    """A socket that nobody listens on, and its folder; one that is in use stays, and so does what is not ours."""
    left, used, other = (tmp_path / f"sdp-run-{digit * 16}" for digit in "abc")
    for folder in (left, used, other):
        folder.mkdir()
    kind = socket.AF_UNIX, socket.SOCK_SEQPACKET
    with socket.socket(*kind) as gone, socket.socket(*kind) as living:
        gone.bind(str(left / "s"))
        living.bind(str(used / "s"))
        living.listen()
        gone.close()
        (other / "file").touch()
        done = sdp(ladder, "run", "--summary", "--", "true", env=environment(TMPDIR=str(tmp_path)))
        assert done.returncode == 0, done.stderr
        assert not left.exists() and used.exists() and (other / "file").exists()
        assert len(list(tmp_path.iterdir())) == 2


CHANGES = """
import os, socket
server = socket.create_server(("127.0.0.1", 0))
def meet():
    with socket.create_connection(server.getsockname()), server.accept()[0]:
        pass
meet()
os.setgroups([]), os.setgid(60), os.setuid(5)
meet()
"""


@as_root
def test_a_server_that_changes_its_user_keeps_its_log(ladder):
    """Each user's lines are in a file of that user's."""
    name = f"sdp-test-user-{os.getpid()}"
    first, second = f"/var/log/{name}", f"/tmp/{name}.5"
    try:
        done = sdp(ladder, "run", "--log", f"1:{name}", "--", python(), "-c", CHANGES)
        assert done.returncode == 0, done.stderr
        with open(first, encoding="utf-8") as before, open(f"{second}/log", encoding="utf-8") as after:
            assert "libsdp" in before.read() and "libsdp" in after.read()
        assert os.stat(second).st_uid == 5
    finally:
        shutil.rmtree(second, ignore_errors=True)
        if os.path.exists(first):
            os.unlink(first)
