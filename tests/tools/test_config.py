"""`sdp config show` and `convert` by hand: origins in a real environment, files that keep their meaning."""

import itertools
import json
import subprocess

import pytest

from tools.sdp import environment, sdp

pytestmark = pytest.mark.quick

EVERYTHING = "use tcp client * *:389\nuse sdp client * 192.168.1.0/24:*\nuse both server db2* *:50000-50010\n"


def verdicts(ladder, path):
    """What a few sockets get."""
    found = []
    for program, (address, flags) in itertools.product(
        ("java", "db2sysc", "x"),
        (("192.168.1.9:389", []), ("192.168.1.9:1", []), ("10.0.0.1:1", []), ("0.0.0.0:50003", ["--server"])),
    ):
        done = sdp(ladder, "explain", "--json", *flags, "--config", path, program, address)
        found.append(json.loads(done.stdout)["verdict"])
    return found


def test_each_setting_has_its_origin(ladder, tmp_path):
    """The environment wins over the file, which wins over the default; rules in front come first."""
    rules = tmp_path / "rules.conf"
    rules.write_text("# head\noption recv_poll 700\noption ring_bytes 65536\nmatch program db2*\n", encoding="utf-8")
    env = environment(LIBSDP_CONFIG_FILE=str(rules), SDP_RECV_POLL="9", SDP_RULES="use tcp client * *:389")
    shown = json.loads(sdp(ladder, "config", "show", "--json", env=env).stdout)
    origins = [(r["family"], r["role"], r["origin"]["kind"], r["origin"]["line"]) for r in shown["rules"]]
    assert origins == [("tcp", "client", "front", 1), ("sdp", "server", "file", 4), ("sdp", "client", "file", 4)]
    assert shown["otherwise"] == "tcp"
    of = {t["key"]: (t["value"], t["origin"]["kind"], t["origin"]["name"]) for t in shown["tunables"]}
    assert of["recv_poll"] == ("9", "environment", "SDP_RECV_POLL")
    assert of["ring_bytes"] == ("65536", "file", str(rules))
    assert of["promote_calls"] == ("16", "default", None)
    text = sdp(ladder, "config", "show", env=env).stdout
    assert f"{rules}:4" in text and "environment: SDP_RECV_POLL" in text


def test_programs_see_what_is_shown(ladder, tmp_path):
    """The figure that is shown is the one that a program has."""
    rules = tmp_path / "rules.conf"
    rules.write_text("option io_uring deny\n", encoding="utf-8")
    done = sdp(ladder, "run", "--config", rules, "--", ladder.artifacts.sdp, "config", "show", "--json")
    of = {t["key"]: t["value"] for t in json.loads(done.stdout)["tunables"]}
    assert of["io_uring"] == "deny"


def test_a_converted_file_means_the_same(ladder, tmp_path):
    """From one language into the other and back, as `sdp explain` reads each."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    first.write_text("match shared *:50000-50010 program db2*\nmatch destination 192.168.1.0/24\n", encoding="utf-8")
    for source, target, language in ((first, second, "use"), (second, third, "match")):
        done = sdp(ladder, "config", "convert", "--to", language, source)
        assert done.returncode == 0, done.stderr
        target.write_text(done.stdout, encoding="utf-8")
    assert verdicts(ladder, first) == verdicts(ladder, second) == verdicts(ladder, third)
    assert third.read_text(encoding="utf-8") == first.read_text(encoding="utf-8").replace("/24\n", "/24:*\n")
    assert sdp(ladder, "config", "check", second).stdout.count("warning:") == 0


def test_what_cannot_be_said_is_refused(ladder, tmp_path):
    """With its line, and nothing on standard output that could replace a file."""
    rules = tmp_path / "rules.conf"
    rules.write_text(EVERYTHING, encoding="utf-8")
    done = sdp(ladder, "config", "convert", "--to", "match", rules)
    assert done.returncode == 1 and done.stdout == ""
    assert f"{rules}: line 1: an exception from a later rule" in done.stderr
    for line, column in (
        ("use sdp klient * *:*", 9),
        ("use sdp connect * myhost:5001", 19),
        ("use sdp connect * *:010", 21),
        ("use sdp server", 15),
        ("match all", 7),
    ):
        rules.write_text(line + "\n", encoding="utf-8")
        done = sdp(ladder, "config", "convert", "--to", "use", rules)
        assert done.returncode == 1 and done.stdout == "" and f":1:{column}: error:" in done.stderr, done.stderr


def test_a_file_can_drive_no_terminal(ladder, tmp_path):
    """Names with escape sequences are shown without them."""
    rules = tmp_path / "rules.conf"
    rules.write_bytes(b"use tcp client \x1b[2Jx *:1\nlog destination file \x1b[2J\n")
    for command in (["show", rules], ["check", rules]):
        done = subprocess.run([ladder.artifacts.sdp, "config", *command], capture_output=True, check=True)
        assert b"\x1b" not in done.stdout, done.stdout


def test_saved_tunables_hold_for_programs_to_come(ladder, tmp_path):
    """In the file, with its mode and through a link to it; values that cannot be change nothing."""
    rules, link = tmp_path / "rules.conf", tmp_path / "link.conf"
    rules.write_text("# mine\noption io_uring allow\nuse both client * *:*\n", encoding="utf-8")
    rules.chmod(0o640)
    link.symlink_to(rules)
    done = sdp(ladder, "tune", "--save", "--config", link, "io_uring=deny", "recv_poll=7")
    assert done.returncode == 0 and f"{link}:2" in done.stdout, done.stdout + done.stderr
    expected = "# mine\noption io_uring deny\nuse both client * *:*\noption recv_poll 7\n"
    assert rules.read_text(encoding="utf-8") == expected
    assert rules.stat().st_mode & 0o777 == 0o640 and link.is_symlink() and len(list(tmp_path.iterdir())) == 2
    for bad in ("io_uring=maybe", "nothing=1", "debug_level=10"):
        assert sdp(ladder, "tune", "--save", "--config", link, bad).returncode == 1
        assert rules.read_text(encoding="utf-8") == expected
    done = sdp(ladder, "tune", "recv_poll=1")
    assert done.returncode == 1 and "--save" in done.stderr
    shown = json.loads(sdp(ladder, "tune", "--json", "--config", link, "recv_poll").stdout)
    assert [(t["key"], t["value"]) for t in shown["tunables"]] == [("recv_poll", "7")]
    old = sdp(ladder, "tune", "--save", "--config", tmp_path / "old.conf", "debug_level=1")  # a former name
    assert old.returncode == 0 and "sdp_debug_level" in (tmp_path / "old.conf").read_text(encoding="utf-8")
    new = tmp_path / "new.conf"
    assert sdp(ladder, "tune", "--save", "--config", new, "sdp_zcopy_thresh=65536").stdout.endswith(
        "new.conf:1 (between hosts, where both ends set it)\n"
    )
