"""The library's own report (`sdp run --report`) and what is demanded of it."""

import json

# What a young connection may send over TCP before it earns a lane, per connection and direction.
YOUNG_BYTES = 64 * 1024

# A direction with less payload after the young bytes says nothing about acceleration.
MIN_VOLUME = 1_000_000


class WrongBytes(AssertionError):
    """Bytes were lost, made up, doubled or somebody else's: no second attempt excuses that."""


def check_bytes(holds, what):
    """Something about bytes that must hold."""
    if not holds:
        raise WrongBytes(what)


class Report:
    """One report, schema 1."""

    def __init__(self, name, raw):
        self.name = name
        self.raw = raw
        assert raw.get("schema") == 1, f"{name}: schema {raw.get('schema')}"

    @classmethod
    def read(cls, name, path):
        """Reads a report file; a failure with its content if it is not one."""
        text = path.read_text(encoding="utf-8")
        try:
            return cls(name, json.loads(text))
        except ValueError as e:
            raise AssertionError(f"{name}: report is not JSON ({e}): {text!r}") from e

    def count(self, group, key):
        """A figure, 0 if absent."""
        return self.raw.get(group, {}).get(key, 0)

    @property
    def seen(self):
        """Ends of established connections."""
        return self.count("connections", "seen")

    @property
    def sdp_bytes(self):
        """Payload on the SDP lane, both directions."""
        return self.count("bytes", "sdp_sent") + self.count("bytes", "sdp_received")

    @property
    def flips(self):
        """Lanes that were left at random calls, because the test asked for it."""
        return self.count("demotions", "test-flip")

    @property
    def tcp_bytes(self):
        """Payload on the TCP lane, both directions."""
        return self.count("bytes", "tcp_sent") + self.count("bytes", "tcp_received")

    def volume(self, direction):
        """(payload on SDP, payload on TCP, payload that may be on TCP) of `sent` or `received`."""
        sdp = self.count("bytes", f"sdp_{direction}")
        tcp = self.count("bytes", f"tcp_{direction}")
        return sdp, tcp, min(sdp + tcp, self.seen * YOUNG_BYTES)

    def share(self, direction):
        """Share of the payload after the young bytes that went over SDP; None if too little."""
        sdp, tcp, young = self.volume(direction)
        after = sdp + tcp - young
        if after < MIN_VOLUME:
            return None
        return min(1.0, max(0.0, 1.0 - max(0, tcp - young) / after))

    def summary(self):
        """The figures in one line."""
        parts = [f"{self.count('connections', 'sdp')} of {self.seen} ends on sdp"]
        for direction in ("sent", "received"):
            sdp, tcp, _ = self.volume(direction)
            share = self.share(direction)
            judged = "too little" if share is None else f"{share:.1%}"
            parts.append(f"{direction}: {sdp} sdp, {tcp} tcp, {judged}")
        for group in ("reasons", "demotions"):
            named = {key: value for key, value in self.raw.get(group, {}).items() if value}
            parts.append(f"{group} {named}")
        return "; ".join(parts)

    def describe(self):
        """The figures, and the whole report, for a failure message."""
        return f"{self.name}: {self.summary()}\n{self.name}: {json.dumps(self.raw)}"


def check_sums(report):
    """What must hold in every report: each end is either sdp or tcp, and each tcp has a reason."""
    seen, sdp, tcp = (report.count("connections", key) for key in ("seen", "sdp", "tcp"))
    check_bytes(seen == sdp + tcp, f"seen is not sdp + tcp\n{report.describe()}")
    reasons = sum(report.raw.get("reasons", {}).values())
    check_bytes(reasons == tcp, f"{tcp} ends on tcp, {reasons} reasons\n{report.describe()}")


def assert_accelerated(report, min_share=0.95, directions=("sent", "received")):
    """At least `min_share` of the payload after the first 64 KiB of each direction went over SDP.

    A direction with too little payload to judge is left out, but not every one may be.
    """
    check_sums(report)
    shares = {direction: report.share(direction) for direction in directions}
    judged = {direction: share for direction, share in shares.items() if share is not None}
    assert judged, f"too little payload to judge acceleration\n{report.describe()}"
    for direction, share in judged.items():
        assert share >= min_share, (
            f"{direction}: {share:.1%} on SDP, at least {min_share:.1%} demanded\n"
            f"{report.describe()}"
        )


def assert_fell_back(report):
    """Everything went over TCP, and the report says why."""
    check_sums(report)
    assert report.sdp_bytes == 0, f"SDP without a partner\n{report.describe()}"
    assert report.seen > 0, f"the library saw no connection\n{report.describe()}"
    assert report.tcp_bytes > 0, f"no payload was counted\n{report.describe()}"


def assert_flipped(report):
    """Lanes changed at random: each flip is a lane that was left, and payload went over SDP between them."""
    assert report.flips > 0, f"no lane was flipped\n{report.describe()}"
    assert report.sdp_bytes > 0, f"no byte went over SDP\n{report.describe()}"


def assert_balanced(total):
    """What was sent was received, exactly; `total` is the sum of both ends' reports.

    By lane the two may differ: bytes that lay unread in a ring when a connection was handed over
    leave it by TCP.
    """
    sent, received = (sum(total.volume(direction)[:2]) for direction in ("sent", "received"))
    check_bytes(sent == received, f"{sent} sent, {received} received\n{total.describe()}")
