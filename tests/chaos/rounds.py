"""What happens in one chaos round, chosen by its seed, and what must hold afterwards."""

import os
import random
import signal
import time

from support.procs import wait_until
from support.report import check_bytes

from .world import LIMIT_S, Gone, clock

# How a victim goes, or what is done to it; more often what has more places to go wrong in.
FATES = (
    ["kill"] * 5
    + ["stop-kill"] * 2
    + ["exit", "exit", "_exit", "exec", "exec-hold"]
    + ["power"] * 3
    + ["stop"] * 3
    + ["leave"] * 2
    + ["descriptors"] * 2
    + ["memory"] * 2
    + ["out-of-memory"]
)
STYLES = ["threads", "threads", "level", "edge", "poll", "ping"]
# Seconds by which the victim's monotonic clocks differ; the last one makes them begin anew.
CLOCKS = [3600, 10 * 365 * 86_400, -(10**9)]
# The longest that load goes on once it is on its lane, and the longest life of a young connection.
LOAD_S, YOUNG_S = 0.03, 0.015
STOPS = 6
# Whoever leaves with a full receive buffer opens its window no more: TCP's other end learns of it by a probe
# when the kernel has forgotten the half-closed socket, after a minute, and probes are far apart by then.
LEFT_LIMIT_S = 4 * LIMIT_S
DEAD_READ = ("EOF", "ECONNRESET", "EPIPE")
DEAD_WRITE = ("EPIPE", "ECONNRESET")
# An end that only answers is done when it reads the end, and then may have nothing to shut any more.
LEFT_WRITE = (*DEAD_WRITE, "-", "done", "ENOTCONN")
# One send of a peer: what it may have published without having said so.
IN_FLIGHT = 1 << 18
EXIT_STARVED = 77


def is_said_to_be_all(end):
    """An end of stream says that nothing is missing. Not so if a writer was told of a reset before the
    reader came: the kernel tells that once, and an end of stream from then on."""
    return end["read"] == "EOF" and end["wrote"] != "ECONNRESET"


class Plan:
    """Everything that a seed chooses."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.seed = seed
        self.fate = rng.choice(FATES)
        # Which of the survivors stands opposite: the one that accepts, or the one that connects.
        self.accepts = rng.random() < 0.5
        self.count = rng.randint(1, 4)
        ping = rng.random() < 0.15
        talks = rng.choice([(True, True), (True, True), (True, False), (False, True)])
        self.survivor, self.victim = (
            {
                "style": "ping" if ping else rng.choice(STYLES[:-1]),
                "sends": ping or sends,
                "lazy": rng.random() < 0.3,
                "gentle": rng.random() < 0.3,
                "nodelay": rng.random() < 0.5,
            }
            for sends in talks
        )
        self.is_young = rng.random() < 0.25
        self.delay_s = rng.random() * (YOUNG_S if self.is_young else LOAD_S)
        self.ahead_s = rng.choice([0] * 5 + CLOCKS)
        self.rng = rng
        if self.fate in ("stop", "leave", "descriptors", "memory"):
            # Nobody dies in these: what is said of acceleration holds for all of them.
            self.is_young = False

    def __str__(self):
        words = [self.fate, "victim connects" if self.accepts else "survivor connects"]
        words += [f"clock {self.ahead_s:+} s"]
        words += [f"{self.count} connections", "young" if self.is_young else "on its lane"]
        return f"{', '.join(words)}; survivor {self.survivor}; victim {self.victim}"


class Round:
    """A plan in a world."""

    def __init__(self, world, plan):
        self.world, self.plan, self.rng = world, plan, plan.rng
        self.dies = plan.fate not in ("stop", "leave", "descriptors", "memory")
        self.endings, self.begun, self.told = {}, 0, 0
        if plan.fate == "power":
            self.one = world.victim(plan.accepts)
        else:
            self.one = world.server if plan.accepts else world.client
        # Nobody's time is the other's: monotonic clocks of the two ends may be years apart. The least
        # that there is: a clock that began a moment ago.
        least_s = 2 - int(min(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)))
        ahead_s = max(plan.ahead_s, least_s)
        words = clock(ahead_s) if ahead_s and world.has_clocks else ()
        self.victim = world.victim(not plan.accepts, is_tight=plan.fate == "out-of-memory", words=words)

    def begin(self, first=0, count=None):
        """Load on all connections."""
        plan = self.plan
        self.begun += 1
        order = {"seed": plan.seed, "count": count or plan.count, "first": first}
        roles = ["accept", "connect"] if plan.accepts else ["connect", "accept"]
        sides = [(self.one, plan.survivor), (self.victim, plan.victim)]
        for (peer, options), role, other in zip(sides, roles, (self.victim, self.one), strict=True):
            dies = self.dies and peer is self.one
            peer.tell("begin", role=role, port=other.port, dies=dies, linger=plan.delay_s < LOAD_S / 2,
                      **{**order, **options})

    def come_to_the_moment(self):
        """The random moment at which it happens."""
        if not self.plan.is_young:
            for peer in (self.one, self.victim):
                before = 0 if peer is not self.one else self.before
                wait_until(
                    lambda p=peer, b=before: self.world.is_attached(p) and self.world.sdp_bytes(p) > b,
                    f"payload on the SDP lane of {peer.name}", LIMIT_S,
                )
        time.sleep(self.plan.delay_s)

    def run(self):
        """The whole round."""
        self.before = self.world.sdp_bytes(self.one)
        self.begin()
        self.come_to_the_moment()
        getattr(self, self.plan.fate.replace("-", "_").strip("_"))()

    def kill(self):
        self.victim.signal(signal.SIGKILL)
        self.after_death(-signal.SIGKILL)

    def stop_kill(self):
        self.victim.signal(signal.SIGSTOP)
        time.sleep(self.rng.random() * 0.02)
        self.victim.signal(signal.SIGKILL)
        self.after_death(-signal.SIGKILL)

    def exit(self):
        self.victim.tell("go", how=self.plan.fate)
        self.after_death(0)

    exec = exec_hold = exit

    def out_of_memory(self):
        if not self.world.memory.dir:
            # No memory group to be had here: killed, as the kernel would have done it.
            return self.kill()
        self.victim.tell("eat")
        return self.after_death(-signal.SIGKILL)

    def power(self):
        """Both ends at once, with all their processes."""
        groups = [peer.process.pid for peer in (self.one, self.victim)]
        self.rng.shuffle(groups)
        for group in groups:
            os.killpg(group, signal.SIGKILL)
        for peer in (self.one, self.victim):
            assert peer.wait() == -signal.SIGKILL, peer.code
        self.endings["power"] = 1

    def after_death(self, code):
        """The survivor's tale of a victim that has ended."""
        page = os.dup(self.victim.page)
        try:
            died = self.victim.wait()
            assert died == code, f"ended with {died}\n{self.victim.log.read_text()}"
            cells = memoryview(os.pread(page, 256, 0)).cast("Q")
        finally:
            os.close(page)
        self.one.tell("change", change={"is_alone": True})
        tale = self.one.hear()
        assert tale["failed"] in (None, "ECONNREFUSED", "ECONNRESET"), tale
        assert self.plan.is_young or tale["failed"] is None, tale
        for end in tale["ended"]:
            sent, got = cells[2 * end["number"]], cells[2 * end["number"] + 1]
            what = f"victim sent {sent} and got {got}; survivor {end}"
            check_bytes(end["wrong"] is None, what)
            assert end["read"] in DEAD_READ, what
            assert end["wrote"] in (*DEAD_WRITE, "-"), what
            assert end["wrote"] != "-" or end["late"] in DEAD_WRITE, what
            check_bytes(not is_said_to_be_all(end) or end["got"] >= sent, what)
            check_bytes(end["got"] <= sent + IN_FLIGHT, what)
            check_bytes(got <= end["sent"], what)
            key = f"{end['read']} {end['wrote'] if end['wrote'] != '-' else end['late']}"
            self.endings[key] = self.endings.get(key, 0) + 1

    def finish(self, orders=1):
        """Everybody stops sending; every byte that was sent has come, on connections of all orders."""
        for peer in (self.one, self.victim):
            peer.tell("change", change={"is_finishing": True})
        tales = []
        for peer in (self.one, self.victim):
            told = []
            for _ in range(orders):
                told.append(peer.hear())
                self.told += peer is self.one
            assert all(tale["failed"] is None for tale in told), told
            tales.append(sorted((e for t in told for e in t["ended"]), key=lambda e: e["number"]))
        assert len(tales[0]) == self.plan.count + orders - 1, tales
        for one, other in zip(*tales, strict=True):
            what = f"survivor {one}; victim {other}"
            assert one["number"] == other["number"], what
            check_bytes(one["wrong"] is None and other["wrong"] is None, what)
            assert one["read"] == other["read"] == "EOF", what
            assert one["wrote"] in ("done", "-") and other["wrote"] in ("done", "-"), what
            check_bytes(one["got"] == other["sent"] and one["sent"] == other["got"], what)
            self.endings["whole"] = self.endings.get("whole", 0) + 1

    def stop(self):
        """Either side, or both, stopped and continued under load."""
        for _ in range(self.rng.randint(1, STOPS)):
            who = self.rng.choice([(self.one,), (self.victim,), (self.one, self.victim)])
            for peer in who:
                peer.signal(signal.SIGSTOP)
            time.sleep(self.rng.random() * 0.03)
            for peer in who:
                peer.signal(signal.SIGCONT)
            time.sleep(self.rng.random() * 0.005)
        self.finish()

    def leave(self):
        """The survivor ends its connections in the middle; the victim, stopped or not, is told."""
        is_stopped = self.rng.random() < 0.5
        if is_stopped:
            self.victim.signal(signal.SIGSTOP)
        self.one.tell("change", change={"is_leaving": True})
        ours = self.one.hear()
        if is_stopped:
            self.victim.signal(signal.SIGCONT)
        theirs = self.victim.hear(LEFT_LIMIT_S)
        assert ours["failed"] is None and theirs["failed"] is None, (ours, theirs)
        for one, other in zip(ours["ended"], theirs["ended"], strict=True):
            what = f"left {one}; was left {other}"
            check_bytes(one["wrong"] is None and other["wrong"] is None, what)
            assert other["read"] in DEAD_READ and other["wrote"] in LEFT_WRITE, what
            check_bytes(not is_said_to_be_all(other) or other["got"] >= one["sent"], what)
            check_bytes(other["got"] <= one["sent"] and one["got"] <= other["sent"], what)
            key = f"left {other['read']} {other['wrote']}"
            self.endings[key] = self.endings.get(key, 0) + 1

    def descriptors(self):
        """No descriptors any more, in the middle, on either side; then more connections; then some."""
        who = self.rng.choice([self.one, self.victim])
        told = who.ask("exhaust", room=self.rng.randint(30, 60), spare=self.rng.randint(16, 24))
        assert told["exhausted"] == "EMFILE", told
        self.begin(first=self.plan.count, count=1)
        self.progress_of_all(self.plan.count + 1)
        assert who.ask("relieve")["relieved"]
        self.finish(orders=2)

    def memory(self):
        """Hardly any memory any more, in the middle; then another connection."""
        extra = self.rng.choice([1, 2, 4, 8, 16, 32]) << 20
        try:
            assert self.victim.ask("starve", extra=extra)["starved"]
            self.begin(first=self.plan.count, count=1)
            self.progress_of_all(self.plan.count)
            assert self.victim.ask("feed")["fed"]
            self.finish(orders=2)
        except Gone:
            # The program itself may have run out of memory; then it has died like any other.
            if self.victim.process.poll() != EXIT_STARVED:
                raise
            self.endings["starved"] = 1
            self.starved()

    def starved(self):
        """The survivor's tales of a victim that had no memory for itself."""
        self.victim.wait()
        for _ in range(self.begun - self.told):
            self.one.tell("change", change={"is_alone": True, "is_finishing": True})
            tale = self.one.hear()
            for end in tale["ended"]:
                check_bytes(end["wrong"] is None, end)
                assert end["read"] in DEAD_READ, end

    def progress_of_all(self, count):
        """Until every connection moves on: none hangs."""
        before = self.victim.progress()[:count]

        def moves():
            if self.victim.process.poll() is not None:
                raise Gone("ended")
            return all(new != old for new, old in zip(self.victim.progress(), before))

        wait_until(moves, f"progress of {count} connections", LIMIT_S)


def play(world, seed):
    """One round from beginning to end; what it saw."""
    plan = Plan(seed)
    entered = Round(world, plan)
    try:
        entered.run()
        world.settle()
    except BaseException as error:
        error.add_note(f"round {seed}, world {world.kind}, users {world.users}: {plan}")
        if isinstance(error, Exception):
            error.add_note(world.evidence())
        raise
    return plan, entered.endings
