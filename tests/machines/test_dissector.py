"""Independent eyes: what real traffic between two machines says, by Wireshark's dissector of SDP."""

import collections
import subprocess

import pytest

from machines.test_wire_programs import EXCHANGE, IS_WHOLE, PORT

# Of a queue pair's packets, those that carry a whole message, and those with the parts of one (RC SEND, with and
# without the rest).
SEND_ONLY, PARTS = 4, {0, 1, 2, 3, 5}
WRITE_ONLY, ACKNOWLEDGE = 10, 17
DATA, DISCONNECT, ABORT = 0xFF, 0x02, 0x03
# Lane messages (docs/spec/sdp.md 2.11): the dissector knows no more of them than their first 16 bytes.
LANE = {0x40: 0x28, 0x41: 0x18}
HEADER = 16
# UDP's header, BTH, invariant CRC.
AROUND = 8 + 12 + 4
FIELDS = "ip.src infiniband.bth.opcode infiniband.bth.destqp infiniband.bth.padcnt infiniband.bth.psn udp.length".split()
FIELDS += [f"infiniband_sdp.bsdh.{name}" for name in ("mid", "flags", "bufs", "len", "mseq", "mseqack")]


def tshark(path, *words):
    """What tshark prints of the capture. Each payload of InfiniBand is taken for SDP: by itself the dissector looks for
    service IDs of SDP's own, which programs may not use on Linux."""
    command = ["tshark", "-r", path, "-o", "infiniband.try_heuristic_first:FALSE", "-d", "infiniband,infiniband_sdp", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def decoded(path):
    """Judges each packet of queue pairs; (bytes of Data messages, messages of each kind, queue pairs that received)."""
    # The dissector wants to show at least one byte behind the header of Data; an update of credit has none.
    is_update = f"infiniband_sdp.bsdh.mid == {DATA} && infiniband_sdp.bsdh.len == {HEADER} && udp.length == {AROUND + HEADER}"
    bad = tshark(path, "-Y", f"_ws.malformed && !({is_update})", "-V")
    assert not bad, "\n".join(bad[:200])
    words = [word for field in FIELDS for word in ("-e", field)]
    kinds, numbers, payload = collections.Counter(), collections.defaultdict(dict), 0
    for line in tshark(path, "-Y", "infiniband.bth && !infiniband.mad", "-T", "fields", *words):
        source, *values = line.split("\t")
        opcode, queue, pad, number, udp, *sdp = [int(value, 0) if value else None for value in values]
        assert opcode not in PARTS, f"a message of several packets: {line}"
        if opcode != SEND_ONLY:
            assert opcode in (WRITE_ONLY, ACKNOWLEDGE), line
            continue
        assert None not in sdp, f"not SDP: {line}"
        mid, flags, buffers, length, sequence, _ = sdp
        assert length == udp - AROUND - pad, line
        assert mid in (DATA, DISCONNECT, ABORT) or LANE.get(mid) == length, line
        assert flags == 0 and buffers <= 64, line
        # A packet that was sent again is the same message.
        known = numbers[source, queue].setdefault(number, sequence)
        assert known == sequence, line
        payload += length - HEADER if mid == DATA else 0
        kinds[mid] += 1
    for queue, of in numbers.items():
        ordered = list(of.values())
        assert ordered == list(range(ordered[0], ordered[0] + len(ordered))), (queue, ordered)
    return payload, kinds, len(numbers)


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
