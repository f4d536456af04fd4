"""Running a scenario under a placement and comparing it with plain TCP."""

import os
import warnings

import pytest

from exceptions import EXCEPTIONS, REPEATED, UNCOUNTED

from .report import (
    YOUNG_BYTES,
    assert_accelerated,
    assert_balanced,
    assert_fell_back,
    assert_flipped,
    check_bytes,
    check_sums,
)
from .space import Space
from .stage import Artifacts, Placement, Stage
from .users import Users

# Packet headers of the first calls and of wake-ups, per connection.
HEADER_ALLOWANCE = 64 * 1024

# How often a scenario of `REPEATED` is played again to reach its share.
REPEATS = 2

# For scenarios of which nothing goes over SDP for a known reason: there is nothing to flip.
UNFLIPPED = (Placement.PLAIN, Placement.BOTH, Placement.SERVER, Placement.CLIENT)

# Every placement, and both ends of one user.
ONE_TOO = tuple(Placement)


def placements(*chosen):
    """Decorator: the test runs once under each placement (unless some are named: all of them, but with one user at both ends only
    what asks for it with `ONE_TOO`)."""
    chosen = chosen or tuple(p for p in Placement if p is not Placement.ONE_USER)
    return pytest.mark.parametrize("placement", chosen, ids=[p.value for p in chosen])


class Ladder:
    """What the tests of one session share: artifacts, plain results, whether spaces are private."""

    def __init__(self, target):
        self.artifacts = Artifacts(target)
        self.private = Space.may_be_private()
        self.flip_seed = int(os.environ.get("SDP_TEST_SEED", "20260101"))
        # Whether both ends of all scenarios are of one user, for suites of programs that may lie where no other one can read.
        self.is_of_one_user = False
        self._plain = {}

    def play(self, name, scenario, placement):
        """Runs a scenario once; (its result, the closed stage)."""
        space = Space(self.private)
        stage = None
        try:
            is_flipped = placement is Placement.FLIP
            is_one = self.is_of_one_user or placement is Placement.ONE_USER
            users = Users.of(name, self.flip_seed, is_flipped, is_one)
            stage = Stage(placement, space, self.artifacts, self.flip_seed, users)
            try:
                result = scenario(stage)
                stage.close()
                return result, stage
            except BaseException:
                stage.abandon()
                print(f"==== {name}, placement {placement.value}, {users.kind}\n{stage.logs()}")
                for report in stage.server_reports + stage.client_reports:
                    print(report.describe())
                raise
        finally:
            if stage:
                stage.loopback = stage.loopback_delta()
                stage.remove()
            space.close()

    def plain(self, name, scenario):
        """The scenario's result over plain TCP, from one run per session."""
        if name not in self._plain:
            self._plain[name] = self.play(name, scenario, Placement.PLAIN)[0]
        return self._plain[name]

    def close(self):
        """Removes what the session made."""
        self.artifacts.close()


def check(ladder, name, scenario, placement, *, bulk=False, quiet=True, chain=False):
    """The scenario's result is that of plain TCP, and the lanes are those that should carry it.

    `bulk`: the payload is large against the number of wake-ups, so that the loopback device's
    counter must show that it did not cross TCP.
    `quiet`: every byte that is sent is read, by programs that can be preloaded, so that the two
    ends' counts must be equal.
    `chain`: servers are clients of servers, so that preloading the servers alone accelerates some.
    """
    expected = ladder.plain(name, scenario)
    if placement is Placement.PLAIN:
        return
    for left in reversed(range(1 + (REPEATS if name in REPEATED else 0))):
        result, stage = ladder.play(name, scenario, placement)
        check_bytes(result == expected, f"differs from plain TCP: {result!r}, expected {expected!r}")
        reports = stage.server_reports + stage.client_reports
        assert reports, "no report"
        note_shares(name, placement, reports)
        if not placement.at_both or not left or has_volume(name, reports):
            break
        # In the summary, of a run that passes too.
        warnings.warn(f"{name} is played again: {merged(reports).summary()}", stacklevel=2)
    if placement.at_both:
        check_volume(name, reports)
        if quiet and name not in UNCOUNTED:
            assert_balanced(merged(reports))
        if bulk and stage.space.is_private:
            check_device(name, stage)
    elif placement is Placement.FLIP:
        for report in reports:
            check_sums(report)
        assert_flipped(merged(reports))
        if quiet and name not in UNCOUNTED:
            assert_balanced(merged(reports))
    elif chain and placement is Placement.SERVER:
        for report in reports:
            check_sums(report)
    elif name in UNCOUNTED:
        for report in reports:
            check_sums(report)
            assert report.sdp_bytes == 0, f"SDP without a partner\n{report.describe()}"
    else:
        for report in reports:
            if report.seen:
                assert_fell_back(report)
        assert any(report.seen for report in reports), "the library saw no connection"


def merged(reports):
    """One report that is the sum of several: a client that makes one request has little volume."""
    total = {"schema": 1}
    for report in reports:
        for group in ("connections", "bytes", "reasons", "demotions", "switches"):
            into = total.setdefault(group, {})
            for key, value in report.raw.get(group, {}).items():
                into[key] = into.get(key, 0) + value
    return type(reports[0])("+".join(r.name for r in reports), total)


def note_shares(name, placement, reports):
    """Appends one line about the lanes to the file that `SDP_TEST_SHARES` names."""
    path = os.environ.get("SDP_TEST_SHARES")
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"{name}\t{placement.value}\t{merged(reports).summary()}\n")


def demanded(name):
    """The share of a scenario's payload that must go over SDP."""
    share, _ = EXCEPTIONS.get(name, (0.95, None))
    return share


def has_volume(name, reports):
    """Whether enough went over SDP: what `check_volume` demands, asked before it does."""
    share = demanded(name)
    total = merged(reports)
    shares = [total.share(direction) for direction in ("sent", "received")]
    return all(found is None or found >= share for found in shares)


def check_volume(name, reports):
    """Acceleration by volume, or a listed exception with its share."""
    share = demanded(name)
    total = merged(reports)
    if share > 0:
        assert_accelerated(total, share)
    else:
        check_sums(total)


def check_device(name, stage):
    """The kernel's witness: the loopback device did not carry what the report says SDP carried."""
    share = demanded(name)
    total = merged(stage.server_reports + stage.client_reports)
    # Both ends counted each byte.
    payload = (total.sdp_bytes + total.tcp_bytes) / 2
    ends = total.seen / 2
    bound = (1 - share) * payload * 1.1 + ends * (2 * YOUNG_BYTES + HEADER_ALLOWANCE)
    assert bound < payload / 2 or share < 0.5, f"too little payload for this witness: {payload}"
    assert stage.loopback <= bound, (
        f"lo carried {stage.loopback} bytes, payload {payload}, at most {bound:.0f} expected\n"
        f"{total.describe()}"
    )
