"""Connections as `sdp stat` shows them on both machines, while their programs go on: what a test waits for, instead of a
number of rounds that may be over before."""

import json

from support.limits import now

# What a loaded machine may take for a step that is waited for; no test passes by it.
EVENT_S = 150


class Shown:
    """Connections of programs under `sdp run` on the machines of `pair`, with the tool `sdp`."""

    def __init__(self, pair, sdp):
        self.pair, self.sdp = pair, sdp

    def ends(self):
        """The ends of all connections now: of machine `b`, then of machine `a`."""
        asked = [guest.start([self.sdp, "stat", "--json"]) for guest in (self.pair.b, self.pair.a)]
        processes = [process for stat in asked for process in json.loads(stat.wait().out)["processes"]]
        return [one for process in processes for one in process["connections"] if one["role"] != "listener"]

    def until_all(self, hold, asked):
        """Waits until something holds for the list of ends, while the client goes on; what they are then."""
        end = now() + EVENT_S
        while True:
            shown = self.ends()
            assert not asked.is_over(), (asked.wait(), shown)
            if hold(shown):
                return shown
            assert now() < end, shown

    def until(self, holds, asked):
        """The same for each end of the one connection."""
        return self.until_all(lambda shown: len(shown) == 2 and all(map(holds, shown)), asked)


def halves(end):
    return end["send"], end["receive"]


def is_on_queue_pair(end):
    """Both halves, which have moved payload there."""
    return end["queue_pair"] is not None and all(half["lane"] == "sdp" and half["sdp_bytes"] for half in halves(end))


def has_none(end):
    """Both halves are on TCP."""
    return end["queue_pair"] is None and all(half["lane"] == "tcp" for half in halves(end))


def moved(end):
    """Payload of both halves, over either lane."""
    return [half["sdp_bytes"] + half["tcp_bytes"] for half in halves(end)]


def goes_on(end, before, lane):
    """Both halves have moved payload by this lane since this end was one of `before`."""
    then = next(one for one in before if one["local"] == end["local"])
    return all(now[f"{lane}_bytes"] > old[f"{lane}_bytes"] for now, old in zip(halves(end), halves(then), strict=True))
