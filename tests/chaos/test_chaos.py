"""Random deaths, stops and shortages under load, and many connections: survivors get what TCP gives,
nothing is left behind, and the next connection is as fast as the first.

Each round is chosen by a seed. A failure names it and the kind of world; `SDP_TEST_SEED=<seed>
CHAOS_WORLDS=<kind> CHAOS_ROUNDS=1 pytest tests/chaos -k rounds` plays that round again.
"""

import os

import pytest

from support.procs import wait_until
from support.report import assert_flipped

from . import rounds
from .world import LIMIT_S, TARGET, World, differences

SEED = int(os.environ.get("SDP_TEST_SEED", "20260101"))
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "50"))
CONNECTS = int(os.environ.get("CHAOS_CONNECTS", "3000"))
# Lanes as they come; in one world of four without anything that is kept for a next connection, in another one with lanes
# that flip at random on every call; if asked for, no library: the suite itself is tested. Worlds that are asked for are
# what they are called.
ASKED = os.environ.get("CHAOS_WORLDS")
KINDS = (ASKED or "steady").split(",")
TURNS = ("exact", "steady", "flip", "steady")
# One world serves this many rounds: its survivors meet many victims, and a failure spoils few rounds.
PER_WORLD = 10
# Connections of one order.
BATCH = 1000


def groups():
    """(kind, seed of its first round, number of rounds) of each world."""
    found = []
    for at, kind in enumerate(KINDS):
        # Half of the rounds each; an odd one is the first kind's.
        count = (ROUNDS + len(KINDS) - 1 - at) // len(KINDS)
        for first in range(0, count, PER_WORLD):
            played = kind if ASKED else TURNS[(SEED + first // PER_WORLD) % len(TURNS)]
            found.append((played, SEED + first, min(PER_WORLD, count - first)))
    return found


@pytest.mark.parametrize(("kind", "seed", "count"), groups())
def test_rounds(kind, seed, count, record_property):
    world = World(TARGET, seed, kind)
    seen = {}
    try:
        for at in range(seed, seed + count):
            plan, endings = rounds.play(world, at)
            for ending, number in endings.items():
                key = f"{plan.fate}: {ending}"
                seen[key] = seen.get(key, 0) + number
        reports = world.close()
    finally:
        world.remove()
    for key, number in sorted(seen.items()):
        record_property(key, number)
    for report in reports:
        # Rounds of young connections, and what lies in the kernel's buffers when a lane is met.
        if kind in ("steady", "exact"):
            assert report.share("sent") > 0.5 and report.share("received") > 0.5, report.describe()
        if kind == "flip":
            assert_flipped(report)


@pytest.mark.parametrize("kind", ["steady", "exact", "flip"])
def test_connects_and_closes(kind):
    """Connections come and go by the thousand, with lanes and without, closed and reset. Many carry little, and
    leave segments that are kept, or not one where nothing is."""
    world = World(TARGET, SEED, kind)
    try:
        server, client = world.victim(True), world.victim(False)
        assert server.ask("echo")["echoing"]
        order = {"port": server.port, "count": BATCH}
        # What is made once and kept is there after the first batch.
        assert client.ask("connects", seed=SEED, **order) == {"connects": BATCH}
        held = {}
        for peer in (server, client):
            # Its listener alone: the last closes have been seen.
            wait_until(lambda p=peer: p.tcp_sockets() == 1, f"idleness of {peer.name}", LIMIT_S)
            held[peer.name] = peer.held()
        moved = [world.sdp_bytes(peer) for peer in (server, client)]
        for batch in range(1, CONNECTS // BATCH):
            assert client.ask("connects", seed=SEED + batch, **order) == {"connects": BATCH}
        for peer in (server, client):
            before = held[peer.name]
            wait_until(
                lambda p=peer, b=before: not differences(p.held(), b),
                f"{peer.name} holds what it held: {before}, not {peer.held()}",
                LIMIT_S,
            )
        if CONNECTS > BATCH:
            for peer, before in zip((server, client), moved, strict=True):
                assert world.sdp_bytes(peer) > before, world.stat(peer)
        for peer in (client, server):
            peer.tell("quit")
            assert peer.wait() == 0, peer.log.read_text()
        world.settle()
        world.close()
    finally:
        world.remove()
