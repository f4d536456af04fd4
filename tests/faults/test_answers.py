"""Calls, flags and options whose answers are the kernel's: on a lane they are the same (`programs/answers.c`).

Each case is run over plain TCP and with the library, and the traces are compared: what every call gave, and what the other
end got by it. What each leads to is written down in `docs/spec/socket-options.md`.
"""

import pytest

from .harness import EAGER, FLIPS, compiled, run

SPLICE, OPTION = "splice", "unsuitable-socket"
# Why the connection leaves its lane, or None: it stays.
CASES = {
    "sendfile files": SPLICE,  # from a directory, at the end
    "sendfile kernel": SPLICE,
    "sendfile zero": SPLICE,
    "sendfile streams": SPLICE,  # from an eventfd, which only the kernel refuses
    "sendfile append": None,
    "sendfile us": SPLICE,
    "sendfile number": SPLICE,
    "vectors": None,
    "lengths receive": None,
    "lengths send": OPTION,
    "lengths number": OPTION,
    "messages": None,
    "send-flags": None,
    "receive-flags": None,
    "vector-flags libc": OPTION,
    "vector-flags number": OPTION,
    "control": None,
    "peek-offset lane": OPTION,
    "peek-offset unread": OPTION,
    "zerocopy libc": OPTION,
    "zerocopy number": OPTION,
    "pacing lane": OPTION,
    "bad-values": OPTION,
    "low-watermark lane": "low-watermark",
    "sent-times": OPTION,
    "refused": None,
    "harmless": None,
    **{f"control-of lane {option}": OPTION for option in ("1 29", "1 35", "1 37", "1 63", "1 64", "1 65")},
    # What is left to read, which the library counts.
    **{f"control-of {where} 6 36": None for where in ("lane", "young", "listener")},
    # Times of arrival: nothing before a call asks for control data.
    **{
        f"control-of {where} {option}": OPTION
        for where in ("young", "listener")
        for option in ("1 29", "1 35", "1 63", "1 64")
    },
}
# What was set before there was a lane: there is none then.
BEFORE = {
    **{f"peek-offset {where}": OPTION for where in ("young", "raw-young", "listener", "raw-listener")},
    **{
        f"control-of {where} {option}": OPTION
        for where in ("young", "listener")
        for option in ("1 37",)
    },
    "pacing listener": OPTION,
    "pacing young": OPTION,
    "signals ioctl": "signal-driven",
    "signals fcntl": "signal-driven",
}
LANES = {"earned": {}, "eager": EAGER, "flipped": FLIPS}


def compared(case, env):
    """What the case showed over plain TCP, it shows with the library."""
    argv = [compiled("answers.c"), *case.split()]
    plain = run(argv, sdp=False)
    assert plain.code == 0, plain.describe()
    outcome = run(argv, env=env)
    assert outcome.code == 0, outcome.describe()
    differences = [pair for pair in zip(plain.seen["trace"], outcome.seen["trace"]) if pair[0] != pair[1]]
    assert outcome.seen == plain.seen, f"differs from plain TCP: {differences[:10]}\n{outcome.describe()}"
    return outcome


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("case", CASES)
def test_answers(case, lanes):
    outcome = compared(case, LANES[lanes])
    assert outcome.report.sdp_bytes > 0, outcome.describe()
    demotions = {word for word, count in outcome.report.raw["demotions"].items() if count}
    allowed = {"peer-switched", "peer-gone", *([CASES[case]] if CASES[case] else [])}
    if lanes == "flipped":
        assert demotions <= {"test-flip", *allowed}, outcome.describe()
    else:
        assert demotions <= allowed, outcome.describe()
        assert CASES[case] is None or CASES[case] in demotions, outcome.describe()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("case", BEFORE)
def test_set_before(case, lanes):
    outcome = compared(case, LANES[lanes])
    assert outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.count("reasons", BEFORE[case]) > 0, outcome.describe()
