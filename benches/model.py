#!/usr/bin/env python3
"""A MODEL, not a measurement: what a queue pair of a network card would make of a message.

No card was there to measure. Each input is an option; those that are counted come from `benches/steps.py`,
`benches/messages.py` and the library's tests, the others are assumptions about a card, a bus and a processor, to be replaced
by what a machine has.

    one way = instructions / (GHz * IPC) of the sender + doorbell + bus + card + [fetch of the payload, if the post does not
              carry it] + wire + card + bus + look at the queue + instructions / (GHz * IPC) of the receiver
    messages per second, one direction = 1 / the slower end's time for a message
    bytes per second = the least of: the wire less headers, the bus, and each end's copies and instructions

    benches/model.py [--OPTION VALUE] …
"""

import argparse

INLINE = 96  # bytes that a post carries, the header of 16 among them
MESSAGE = 4096 - 16
# RoCE v2 on Ethernet: preamble and gap 20, Ethernet 18, IPv4 20, UDP 8, BTH 12, ICRC 4; SDP's own header 16.
PACKET, HEADER = 82, 16

INPUTS = {
    # name: (value, what, where from)
    "send": (1489, "user instructions of a send of one message", "counted, soft-RoCE's driver in it"),
    "receive": (1270, "user instructions of a receive of one message", "counted, soft-RoCE's driver in it"),
    "send-more": (1448, "user instructions of each further message of a send", "counted: 16 KiB are 5 messages"),
    "receive-more": (1788, "user instructions of each further message of a receive", "counted: the same"),
    "send-copies": (2.0, "copies of a payload at the sender", "counted: kept for a resume, and the device's buffer"),
    "receive-copies": (1.0, "copies of a payload at the receiver", "counted"),
    "ghz": (3.0, "clock of the processor", "assumed"),
    "ipc": (2.0, "instructions of a cycle", "assumed"),
    "copy-gbs": (10.0, "a copy, in GB/s", "assumed"),
    "doorbell-ns": (100.0, "a post's store to the card", "assumed"),
    "bus-ns": (250.0, "a write over PCIe, one way", "assumed"),
    "fetch-ns": (500.0, "a read of memory by the card", "assumed"),
    "card-ns": (150.0, "a card's own time for a packet", "assumed"),
    "wire-ns": (200.0, "cables and a switch", "assumed"),
    "look-ns": (50.0, "from the completion in memory to the look that finds it", "assumed"),
    "wire-gbit": (100.0, "speed of the link", "assumed"),
    "bus-gbs": (14.0, "what PCIe carries, in GB/s", "assumed"),
}


def predict(of, size):
    """(one way in ns, messages per second, bytes per second) for messages of `size` bytes."""
    rate = of["ghz"] * of["ipc"]
    parts = max(1, -(-size // MESSAGE))
    first = min(size, MESSAGE)
    copy = lambda copies, count: copies * count / of["copy-gbs"]
    at_sender = lambda count: count / rate + copy(of["send-copies"], first) + of["doorbell-ns"]
    at_receiver = lambda count: count / rate + copy(of["receive-copies"], first)
    sender, receiver = at_sender(of["send"]), at_receiver(of["receive"])
    is_long = parts > 1
    next_sender = at_sender(of["send-more"]) if is_long else sender
    next_receiver = at_receiver(of["receive-more"]) if is_long else receiver
    bits = 8 * (first + HEADER + PACKET)
    fetch = 0 if first + HEADER <= INLINE else of["fetch-ns"]
    way = of["bus-ns"] + of["card-ns"] + fetch + of["wire-ns"] + bits / of["wire-gbit"] + of["card-ns"] + of["bus-ns"] + of["look-ns"]
    per = max(next_sender, next_receiver, bits / of["wire-gbit"])
    one_way = sender + way + receiver + (parts - 1) * per
    wire = of["wire-gbit"] / 8 * first / (first + HEADER + PACKET)
    bandwidth = min(wire, of["bus-gbs"], first / next_sender, first / next_receiver)
    return one_way, 1e9 / (parts * per), bandwidth * 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, (value, what, source) in INPUTS.items():
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what} ({source})")
    given = {name.replace("_", "-"): value for name, value in vars(parser.parse_args()).items()}
    print("A model, not a measurement.")
    for name, (_, what, source) in INPUTS.items():
        print(f"  {name} = {given[name]:g}: {what} ({source})")
    print("| bytes | round trip, both ends awake | messages/s | GB/s |\n|---:|---:|---:|---:|")
    for size in (64, 4080, 65536):
        one_way, messages, bandwidth = predict(given, size)
        print(f"| {size} | {2 * one_way / 1000:.2f} µs | {messages / 1e6:.2f} M | {bandwidth / 1e9:.2f} |")


if __name__ == "__main__":
    main()
