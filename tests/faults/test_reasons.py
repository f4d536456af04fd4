"""What makes a connection leave its lane: not a byte is lost, and the report says why it left.

Every thing is done on a connection that is on its lane, with bytes unread in the rings of both directions, over plain TCP and
with the library (`programs/reasons.c`). What each leads to is written down in `docs/compatibility.md`.
"""

import pytest

from .harness import EAGER, compiled, run

FLIPS = {**EAGER, "SDP_TEST_LANE_FLIP": "11"}
LIMIT_S = 60
THINGS = {
    "splice": ("splice-from", "splice-to"),
    "stdio": ("fdopen-in", "fdopen-out", "dprintf"),
    "aio": ("aio_read", "aio_write", "lio_listio"),
    "signal-driven": (
        *("asynchronous", "O_ASYNC", "F_SETOWN", "F_SETOWN_EX", "F_SETSIG"),
        *("asynchronous-ioctl", "FIOASYNC", "SIOCSPGRP"),
    ),
    "zerocopy-option": ("SO_ZEROCOPY", "MSG_ZEROCOPY"),
    "urgent-data": ("MSG_OOB",),
    "low-watermark": ("SO_RCVLOWAT",),
    "unsuitable-socket": ("SO_TIMESTAMPING", "SO_ATTACH_FILTER", "SO_ATTACH_BPF", "TCP_ULP", "TCP_REPAIR"),
    "limit": ("select",),
    "standard-descriptor": ("dup2", "dup3", "adddup2", "vfork-dup2"),
    "ring-full": ("ring-full",),
}
# From these a connection may return to its lane.
BACK = ("ring-full",)
# Of the program: what is unread each way, what the round trips before it move, and what comes behind the thing each way.
UNREAD, WARM, MORE = 50_000, 30_000, 300_000


@pytest.mark.parametrize("lanes", ["kept", "flipped"])
@pytest.mark.parametrize(
    ("reason", "thing"), [(reason, thing) for reason, things in THINGS.items() for thing in things]
)
def test_reasons(reason, thing, lanes):
    argv = [compiled("reasons.c"), thing]
    plain = run(argv, sdp=False, limit_s=LIMIT_S)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, env=FLIPS if lanes == "flipped" else EAGER, limit_s=LIMIT_S)
    assert outcome.code == 0, outcome.describe()
    assert outcome.seen == plain.seen, f"differs from plain TCP: {plain.seen}\n{outcome.describe()}"
    demotions = {word for word, count in outcome.report.raw["demotions"].items() if count}
    if lanes == "flipped":
        assert "test-flip" in demotions <= {reason, "test-flip", "peer-switched"}, outcome.describe()
        assert outcome.report.sdp_bytes > 0, outcome.describe()
        return
    # The other end follows, and says so.
    assert reason in demotions <= {reason, "peer-switched"}, outcome.describe()
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()
    # More than the round trips and one direction's unread bytes: both directions had some in their rings.
    assert outcome.report.count("bytes", "sdp_sent") >= 2 * UNREAD > WARM + UNREAD, outcome.describe()
    if reason not in BACK:
        # And nothing goes over SDP any more.
        assert outcome.report.count("bytes", "tcp_sent") >= 2 * MORE, outcome.describe()
