"""`use sdp` for clients: SDP where the listener can have it, else the historic error and not a byte sent."""

import json

import pytest

from .harness import EAGER, scenario

STRICT = ["--rule", "use sdp client * *:*"]
BOTH = ["--rule", "use both client * *:*"]


def told(outcome):
    """A scenario's one line."""
    return json.loads(outcome.out.splitlines()[-1])


def strict(name, *args, rules=STRICT):
    """A scenario under strict client rules."""
    return scenario("strict", name, *args, env=EAGER, options=rules)


PLACES = [
    ("127.0.0.1", "127.0.0.1"),
    ("0.0.0.0", "127.0.0.1"),
    ("0.0.0.0", "127.8.9.10"),
    ("0.0.0.0", "0.0.0.0"),
    ("::", "127.0.0.1"),
    ("::", "::1"),
    ("::", "::"),
    ("::1", "::1"),
    ("127.0.0.1", "::ffff:127.0.0.1"),
    ("::", "::ffff:127.0.0.1"),
]


@pytest.mark.parametrize(("bound", "to"), PLACES)
def test_library(bound, to):
    outcome = strict("reach", bound, to, "library")
    assert told(outcome) == "talked", outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@pytest.mark.parametrize(("bound", "to"), PLACES)
def test_no_library(bound, to):
    outcome = strict("reach", bound, to, "plain")
    assert told(outcome) == "ECONNREFUSED", outcome.describe()
    assert outcome.report.seen == 0, outcome.describe()


def test_non_blocking():
    assert told(strict("reach", "127.0.0.1", "127.0.0.1", "library-nonblocking")) == "talked"
    assert told(strict("reach", "127.0.0.1", "127.0.0.1", "plain-nonblocking")) == "ECONNREFUSED"


def test_both_never_refuses():
    assert told(strict("reach", "127.0.0.1", "127.0.0.1", "plain", rules=BOTH)) == "talked"


def test_a_server_whose_rule_is_tcp():
    rules = [*STRICT, "--rule", "use tcp server * *:*"]
    outcome = strict("reach", "127.0.0.1", "127.0.0.1", "library", rules=rules)
    assert told(outcome) == "ECONNREFUSED", outcome.describe()


@pytest.mark.parametrize("mode", ["blocking", "nonblocking"])
@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_another_host(host, mode):
    """An address that no fabric reaches: at once, and no packet leaves for it."""
    outcome = strict("nobody", host, "9", mode)
    assert told(outcome) == "ENETUNREACH", outcome.describe()


def test_nobody_listens():
    assert told(strict("closed")) == "ECONNREFUSED"


def test_bound_source():
    assert told(strict("bound_source")) == "talked"


def test_again():
    assert told(strict("again")) == ["ECONNREFUSED", True]


def test_one_thread():
    assert told(strict("one_thread")) == "hello"


def test_both_kinds_of_clients():
    outcome = strict("both_kinds")
    assert told(outcome) == ["talked", "talked"], outcome.describe()
    assert outcome.report.sdp_bytes > 0 and outcome.report.tcp_bytes > 0, outcome.describe()


def test_two_peers():
    """One program, SDP for one peer, TCP for another."""
    rules = ["--rule", "use sdp client * 127.0.0.1:*", "--rule", "use tcp client * 127.0.0.2:*"]
    outcome = strict("two_peers", "127.0.0.1", "127.0.0.2", rules=rules)
    assert told(outcome) == ["talked", "talked"], outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()
    assert outcome.report.raw["reasons"].get("rule-tcp") == 1, outcome.describe()


@pytest.mark.parametrize(
    ("line", "peer", "result"),
    [
        ("match destination 127.0.0.0/8", "plain", "ECONNREFUSED"),
        ("match destination 127.0.0.0/8", "library", "talked"),
        ("match destination *.*", "plain", "ECONNREFUSED"),
        ("match program no-such", "plain", "talked"),
        ("match program *", "plain", "ECONNREFUSED"),
    ],
)
def test_match(line, peer, result, tmp_path):
    """The older dialect; its server marks its listener with a rule of its own."""
    file = tmp_path / "rules"
    file.write_text(f"{line}\nmatch shared *:*\n", encoding="utf-8")
    outcome = scenario("strict", "reach", "127.0.0.1", "127.0.0.1", peer, env=EAGER, rules=file)
    assert told(outcome) == result, outcome.describe()


def test_simple_mode():
    """`SIMPLE_LIBSDP`: SDP for everything, nothing else."""
    outcome = scenario(
        "strict", "reach", "127.0.0.1", "127.0.0.1", "plain",
        env={**EAGER, "SIMPLE_LIBSDP": ""},
        options=[],
    )
    assert told(outcome) == "ECONNREFUSED", outcome.describe()


def test_bad_addresses():
    plain = scenario("strict", "bad_addresses", sdp=False)
    assert told(strict("bad_addresses")) == told(plain)
