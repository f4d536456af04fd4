"""`use sdp` for servers: clients with the library are served, others are reset before the program sees them."""

import json

import pytest

from .harness import EAGER, scenario

STRICT = ["--rule", "use sdp server * *:*"]
BOTH = ["--rule", "use both server * *:*"]
RESET = "ConnectionResetError"


def run(name, *args, rules=STRICT, **options):
    """A scenario and what it told."""
    outcome = scenario("strict_servers", name, *args, env=EAGER, options=rules, **options)
    return json.loads(outcome.out.splitlines()[-1]), outcome


def refusals(outcome):
    """Connections that were refused, by reason."""
    return outcome.report.raw["refused"]


@pytest.mark.parametrize(
    ("bound", "to"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::", "::1"), ("::1", "::1")],
)
def test_both_kinds(bound, to):
    seen, outcome = run("clients", bound, to, "plain", "library", "plain", "library")
    assert seen == [RESET, "talked", RESET, "talked"], outcome.describe()
    assert refusals(outcome) == {"peer-not-listening": 2}, outcome.describe()
    assert outcome.report.seen == 4 and outcome.report.count("connections", "sdp") == 4, outcome.describe()


def test_both_never_refuses():
    seen, outcome = run("clients", "127.0.0.1", "127.0.0.1", "plain", "library", rules=BOTH)
    assert seen == ["talked", "talked"] and refusals(outcome) == {}, outcome.describe()


def test_a_client_whose_rule_is_tcp():
    """It will have no lane, and is refused as one without the library."""
    rules = [*STRICT, "--rule", "use tcp client * *:*"]
    seen, outcome = run("clients", "127.0.0.1", "127.0.0.1", "library", rules=rules)
    assert seen == [RESET] and refusals(outcome) == {"peer-not-listening": 1}, outcome.describe()


def test_both_ends_are_strict():
    rules = [*STRICT, "--rule", "use sdp client * *:*"]
    seen, outcome = run("clients", "127.0.0.1", "127.0.0.1", "plain", "library", rules=rules)
    assert seen == [RESET, "talked"], outcome.describe()


def test_no_fabric():
    """Nobody can have a lane then."""
    seen, outcome = run("clients", "127.0.0.1", "127.0.0.1", "library", rules=[*STRICT, "--set", "fabrics=none"])
    assert seen == [RESET] and refusals(outcome) == {"disabled": 1}, outcome.describe()


def test_explicit():
    """A listener of AF_INET_SDP needs no rule."""
    seen, outcome = run("explicit", "plain", "library", rules=[])
    assert seen == [RESET, "talked"] and refusals(outcome) == {"peer-not-listening": 1}, outcome.describe()


def test_blocking_accept():
    seen, outcome = run("blocking")
    assert seen == [RESET] * 3 + ["talked", 2], outcome.describe()


def test_nonblocking_accept():
    assert run("nonblocking")[0] == [RESET, "EAGAIN"]


def test_one_thread():
    assert run("one_thread")[0] == "hello"


def test_a_client_that_has_gone():
    assert run("gone")[0] == "last"


def test_event_loop():
    seen, outcome = run("aio")
    assert seen == [RESET, "talked"] * 2, outcome.describe()


def test_changed_file(tmp_path):
    """Within a second, in both directions."""
    file = tmp_path / "rules"
    file.write_text("use both server * *:*\n", encoding="utf-8")
    outcome = scenario("strict_servers", "changes", file, env=EAGER, rules=file)
    seen = json.loads(outcome.out.splitlines()[-1])
    assert seen == ["talked", RESET, "talked", "talked", "talked"], outcome.describe()


def test_two_ports():
    """Strict for one port, both for the other."""
    rules = ["--rule", "use sdp server * *:17801", "--rule", "use both server * *:*"]
    seen, outcome = run("two_ports", 17801, 17802, rules=rules)
    assert seen == [RESET, "talked", "talked", "talked"], outcome.describe()


@pytest.mark.parametrize(("line", "result"), [("match listen *:*", RESET), ("match program *", RESET), ("match shared *:*", "talked")])
def test_match(line, result, tmp_path):
    """The older dialect."""
    file = tmp_path / "rules"
    file.write_text(f"{line}\n", encoding="utf-8")
    outcome = scenario("strict_servers", "clients", "127.0.0.1", "127.0.0.1", "plain", env=EAGER, rules=file)
    assert json.loads(outcome.out.splitlines()[-1]) == [result], outcome.describe()


def test_the_log_says_why():
    outcome = scenario(
        "strict_servers", "clients", "127.0.0.1", "127.0.0.1", "plain",
        env=EAGER, options=[*STRICT, "--rule", "log min-level 7 destination stderr"],
    )
    assert "ACCEPT: refused on fd:" in outcome.err and "by use sdp, no SDP there: peer-not-listening" in outcome.err, outcome.err
