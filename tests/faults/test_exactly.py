"""A program learns as much of a connection on its lanes as over TCP: limits of time, events. Beside other libraries, too."""

import pytest

from .harness import EAGER, compiled, run

# Events seen that say "readable" and "writable": each of them, and of edges each new byte's, too.
CASES = {"limits": None, "unread": None, "queued": None, "events level": 20, "events edge": 40, "events once": 20,
         "events edge-once": 20, "events fresh": 20}
EAGAIN, EDOM = -11, -33


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_exactly(case, env):
    argv = [compiled("exactly.c"), *case.split()]
    plain = run(argv, sdp=False)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, env=env)
    assert outcome.code == 0 and outcome.seen == plain.seen, f"{plain.seen}\n{outcome.describe()}"
    if case == "limits":
        assert outcome.seen["seen"][:3] == [EAGAIN, -4, EAGAIN], outcome.describe()
        assert outcome.seen["seen"][3:5] == [EDOM, EDOM], outcome.describe()
    elif case == "unread":
        assert outcome.report.count("demotions", "unsuitable-socket") == 0, outcome.describe()
    elif case == "queued":
        assert outcome.seen == {"left": 0}, outcome.describe()
    else:
        assert outcome.seen == {"both": CASES[case]}, outcome.describe()
    assert outcome.report.sdp_bytes > 0, outcome.describe()
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize("place", ["before", "behind"])
def test_beside_a_clock_that_stands_still(place, env):
    """The library's time is the kernel's, whatever other library has the names by which programs ask for it."""
    program, still = compiled("exactly.c"), compiled("still.c", "-shared", "-fPIC")
    both = '"$0:$LD_PRELOAD"' if place == "before" else '"$LD_PRELOAD:$0"'
    wrapped = ["sh", "-c", f'LD_PRELOAD={both} exec "$@"', still, program, "waits"]
    plain = run([program, "waits"], sdp=False)
    assert plain.code == 0, plain.describe()
    outcome = run(wrapped, env=env)
    assert outcome.code == 0 and outcome.seen == plain.seen, f"{plain.seen}\n{outcome.describe()}"
    assert outcome.seen == {"seen": [0, 0, 0, 0, EAGAIN]}, outcome.describe()
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
@pytest.mark.parametrize(("ring", "least", "most"), [(None, 16385, 64512), (65536, 1000, 16384)])
def test_messages_come_whole(ring, least, most, env):
    """What one call sends is there at once, as mostly over TCP, up to a size: a reader that is awake gets it with one receive, and
    nothing before the last of it was copied."""
    if ring:
        env = {**env, "SDP_RING_BYTES": str(ring)}
    outcome = run([compiled("exactly.c"), "whole", str(least), str(most)], env=env)
    assert outcome.code == 0 and outcome.seen == {"whole": 200, "early": 0}, outcome.describe()
    assert outcome.report.sdp_bytes > 200 * least, outcome.describe()


@pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])
def test_a_long_send_goes_on_in_pieces(env):
    """Its reader copies one piece while the next one is copied, to the last."""
    outcome = run([compiled("exactly.c"), "long", "65536"], env=env)
    assert outcome.code == 0 and outcome.seen == {"early": 3 * 16384}, outcome.describe()
    assert outcome.report.sdp_bytes > 65536, outcome.describe()
