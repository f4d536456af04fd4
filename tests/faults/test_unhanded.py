"""What cannot be handed over ends in an error or a refusal, never in a clean end with bytes missing."""

import os

import pytest

from .harness import EAGER, scenario

ENVS = pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])


@ENVS
@pytest.mark.parametrize("share", ["alone", "kept"])
@pytest.mark.parametrize("where", ["image", "dup"])
def test_executed(where, share, env):
    """Under Landlock's rules of the network nothing can take the connection's place; its peer has half closed."""
    plain = scenario("unhanded", "executed", where, share, sdp=False).seen
    outcome = scenario("unhanded", "executed", where, share, env=env)
    seen = outcome.seen
    assert plain["honest"] and seen["honest"] and seen["child"], outcome.describe()
    assert seen["rules"], "this kernel knows no rules of Landlock for the network"
    assert seen["kept"] == (20_000 if share == "kept" else None), outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@ENVS
def test_executed_here(env):
    outcome = scenario("unhanded", "direct", env=env)
    assert outcome.seen == {"honest": True}, outcome.describe()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@ENVS
@pytest.mark.parametrize("peer", ["open", "half"])
def test_executed_without_a_process_more(peer, env):
    """Where the limit of processes allows no relay: what the peer's socket takes back is whole, all else an error."""
    plain = scenario("unhanded", "no_process", peer, sdp=False).seen
    assert plain == {"whole": True, "part": True, "error": False}, plain
    outcome = scenario("unhanded", "no_process", peer, env=env)
    assert outcome.seen["whole"] or peer == "half" and outcome.seen["error"], outcome.describe()
    assert outcome.seen["part"], outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@ENVS
@pytest.mark.parametrize("how", ["rights", "fdopen", "splice", "actions", "spawn"])
def test_refused(how, env):
    """The call fails, and this process still reads everything; over TCP it does not fail."""
    plain = scenario("unhanded", "failing", how, sdp=False).seen
    assert plain == {"passed": True, "rest": [20_000, "EOF", True], "child": True}, plain
    outcome = scenario("unhanded", "failing", how, env=env)
    assert outcome.seen == {**plain, "passed": False}, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()


@ENVS
@pytest.mark.parametrize("network", ["allowed", "forbidden"])
def test_filtered(network, env):
    outcome = scenario("unhanded", "filtered", network, env=env)
    seen = outcome.seen
    assert seen["honest"] and seen["child"], outcome.describe()
    assert seen["all"] == (network == "allowed"), outcome.describe()
