"""Independent eyes: what real traffic between two machines says, by Wireshark's dissector of SDP."""

import collections
import subprocess

import pytest

from machines.test_wire_programs import EXCHANGE, IS_WHOLE, PORT

# Of a queue pair's packets (RC): WRITE in several packets or one, and with immediate data at its end; acknowledgements. A
# message is a WRITE with immediate data, or two WRITEs of which the first ends where the ring does.
FIRST, MIDDLE, LAST, LAST_IMMEDIATE, ONLY, ONLY_IMMEDIATE, ACKNOWLEDGE = 6, 7, 8, 9, 10, 11, 17
DATA, DISCONNECT, ABORT = 0xFF, 0x02, 0x03
# Lane messages (docs/spec/sdp.md 2.11): the dissector knows no more of them than their first 16 bytes.
LANE = {0x40: 0x28, 0x41: 0x18}
HEADER = 16
# UDP's header, BTH, invariant CRC; with the first packet of a WRITE RETH, and the immediate data.
AROUND, RETH, IMMEDIATE = 8 + 12 + 4, 16, 4
FIELDS = "frame.number ip.src infiniband.bth.opcode infiniband.bth.destqp infiniband.bth.padcnt infiniband.bth.psn udp.length"
FIELDS = FIELDS.split() + [f"infiniband_sdp.bsdh.{name}" for name in ("mid", "flags", "bufs", "len", "mseq", "mseqack")]


def tshark(path, *words):
    """What tshark prints of the capture. Each payload of InfiniBand is taken for SDP: by itself the dissector looks for
    service IDs of SDP's own, which programs may not use on Linux."""
    command = ["tshark", "-r", path, "-o", "infiniband.try_heuristic_first:FALSE", "-d", "infiniband,infiniband_sdp", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


class Way:
    """The messages that one end writes."""

    def __init__(self):
        self.seen, self.left, self.goes_on = set(), 0, False
        self.numbers, self.kinds, self.payload = [], collections.Counter(), 0

    def packet(self, opcode, length, sdp, line):
        """Whether a header is at the beginning of it."""
        begins = opcode in (FIRST, ONLY, ONLY_IMMEDIATE) and not self.goes_on
        if begins:
            assert not self.left and None not in sdp, f"not SDP: {line}"
            mid, flags, buffers, whole, sequence, _ = sdp
            assert mid in (DATA, DISCONNECT, ABORT) or LANE.get(mid) == whole, line
            assert flags == 0 and buffers <= 64, line
            self.left = whole
            self.payload += whole - HEADER if mid == DATA else 0
            self.kinds[mid] += 1
            self.numbers.append(sequence)
        self.left -= length
        assert self.left >= 0, line
        # Behind a WRITE without immediate data stands the rest of its message.
        self.goes_on = opcode in (LAST, ONLY) or self.goes_on and opcode in (FIRST, MIDDLE)
        if opcode in (LAST_IMMEDIATE, ONLY_IMMEDIATE):
            assert self.left == 0, line
        return begins


def decoded(path):
    """Judges each packet of queue pairs; (bytes of Data messages, messages of each kind, queue pairs that received)."""
    words = [word for field in FIELDS for word in ("-e", field)]
    ways, headers, updates = collections.defaultdict(Way), set(), set()
    for line in tshark(path, "-Y", "infiniband.bth && !infiniband.mad", "-T", "fields", *words):
        frame, source, *values = line.split("\t")
        opcode, queue, pad, number, udp, *sdp = [int(value, 0) if value else None for value in values]
        if opcode == ACKNOWLEDGE:
            continue
        way = ways[source, queue]
        length = udp - AROUND - pad
        length -= RETH if opcode in (FIRST, ONLY, ONLY_IMMEDIATE) else 0
        length -= IMMEDIATE if opcode in (LAST_IMMEDIATE, ONLY_IMMEDIATE) else 0
        assert FIRST <= opcode <= ONLY_IMMEDIATE, line
        # One of no bytes asks for the other end; a packet that was sent again is the same.
        if (opcode == ONLY and length == 0) or number in way.seen:
            continue
        way.seen.add(number)
        if way.packet(opcode, length, sdp, line):
            headers.add(frame)
            # The dissector wants to show at least one byte behind the header of Data; an update of credit has none.
            updates |= {frame} if sdp[0] == DATA and sdp[3] == HEADER else set()
    bad = set(tshark(path, "-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number")) & headers - updates
    assert not bad, bad
    for of, way in ways.items():
        assert way.numbers == list(range(way.numbers[0], way.numbers[0] + len(way.numbers))), (of, way.numbers)
    payload, kinds = sum(way.payload for way in ways.values()), sum((way.kinds for way in ways.values()), collections.Counter())
    return payload, kinds, len(ways)


if IS_WHOLE:

    @pytest.mark.integrity
    def test_each_message_decodes(pair, ends):
        """Two streams of small and large messages: no packet is malformed but updates of credit, each header says how
        long its message is, and the numbers of each direction have no gap."""
        dump = pair.b.start("exec tcpdump -i eth0 -s 0 -U -w /tmp/wire.pcap 'udp port 4791'")
        pair.b.run("until [ -s /tmp/wire.pcap ]; do sleep 0.1; done")
        python = ["/usr/bin/python3", EXCHANGE]
        ends.serve([*python, "serve", PORT], "daemon", PORT)
        asked = ["ask", pair.a.address, PORT, "--rounds", 150, "--connections", 2, "--size", 9000]
        done, client = ends.ask([*python, *asked])
        assert done.out == b"every byte\n"
        ends.judge(ends.stop(ok=(143,)), [client], share=0.5, connections=2, last=9000)
        pair.b.run("sleep 1; pkill -INT -x tcpdump")
        dump.wait()
        pair.b.run("cp /tmp/wire.pcap /control/wire.pcap")
        payload, kinds, queues = decoded(pair.b.control / "wire.pcap")
        print(payload, kinds, queues)
        moved = client["bytes"]
        assert payload >= moved["sdp_sent"] + moved["sdp_received"], (payload, moved)
        assert queues >= 4 and kinds[DATA] > 300 and kinds[0x40] >= 2, (queues, kinds)
