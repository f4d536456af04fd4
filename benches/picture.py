#!/usr/bin/env python3
"""Draws docs/results.svg from the recorded table of results (docs/measured/performance.md, section 6).

usage: picture.py [--check]

One row for each load, TCP and SDP side by side, each row on a scale of its own: its longer bar is full. Longer is better
where the unit is per second, shorter where it is a time; each row says which. `--check` compares with the file instead of
writing it. The picture needs no colours: SDP's bars are hatched, and every bar has its figure.
"""

import html
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
RECORD = TOP / "docs/measured/performance.md"
PICTURE = TOP / "docs/results.svg"
# The loads of the picture: the row's name in the record, and the label here.
LOADS = (
    ("64 B ping-pong, default, two CPUs", "64 B ping-pong"),
    ("64 B ping-pong, `recv_poll=0`", "64 B ping-pong, asleep"),
    ("16 KiB request and response", "16 KiB request and answer"),
    ("16 KiB writes, one direction: bandwidth", "16 KiB writes, one way"),
    ("Redis GET, 1 client", "Redis GET, 1 client"),
    ("Redis GET, 50 clients", "Redis GET, 50 clients"),
)
WIDTH, LEFT, BAR, ROW, HEAD = 760, 215, 400, 58, 44
STYLE = """
  text { font: 14px sans-serif; fill: #1b1f24; }
  .note { font-size: 12px; fill: #57606a; }
  .tcp { fill: #8c959f; } .sdp { fill: #0969da; } .lines { stroke: #ffffff; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .note { fill: #9198a1; } .tcp { fill: #6e7681; } .sdp { fill: #4493f8; }
    .lines { stroke: #0d1117; }
  }
"""


def rows():
    """TCP, SDP and the ratio of one user by the name of the row."""
    section = RECORD.read_text(encoding="utf-8").split("\n## 6 By users\n")[1].split("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 7:
            found[cells[0]] = (cells[2], cells[3], re.sub(r" [\[(].*", "", cells[4]))
    return found


def number(text):
    """A figure and its unit."""
    match = re.fullmatch(r"([0-9][0-9 .]*?) ?([^0-9 .].*)", text)
    return float(match[1].replace(" ", "")), match[2]


def bar(kind, y, value, longest, text):
    """A bar and its figure."""
    length = max(2.0, BAR * value / longest)
    shape = f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="16"/>'
    if kind == "sdp":
        shape += f'<rect fill="url(#hatch)" x="{LEFT}" y="{y}" width="{length:.1f}" height="16"/>'
    return f'  {shape}\n  <text x="{LEFT + length + 8:.1f}" y="{y + 13}">{kind.upper()} {html.escape(text)}</text>'


def draw():
    """The picture."""
    record = rows()
    height = HEAD + ROW * len(LOADS) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        'aria-labelledby="title">',
        "  <title id=\"title\">Measured: TCP and SDP for six loads</title>",
        f"  <style>{STYLE}  </style>",
        '  <pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="lines" d="M0 0V8"/></pattern>',
        '  <text class="note" x="8" y="20">One host, one user, a virtual machine with 2 CPUs. Each load has a scale of its own;'
        "</text>",
        '  <text class="note" x="8" y="36">a time is better shorter, a rate longer. SDP is hatched.</text>',
    ]
    for place, (name, label) in enumerate(LOADS):
        tcp, sdp, ratio = record[name]
        (first, unit), (second, _) = number(tcp), number(sdp)
        is_time = not unit.endswith("/s") and unit != "tps"
        y = HEAD + ROW * place + 6
        longest = max(first, second)
        out.append(f'  <text x="8" y="{y + 14}">{html.escape(label)}</text>')
        hint = "shorter is better" if is_time else "longer is better"
        out.append(f'  <text class="note" x="8" y="{y + 32}">{html.escape(ratio)}, {hint}</text>')
        out += [bar("tcp", y, first, longest, tcp), bar("sdp", y + 20, second, longest, sdp)]
    return "\n".join([*out, "</svg>", ""])


def main():
    """Writes, or compares."""
    text = draw()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PICTURE.read_text(encoding="utf-8") == text else f"{PICTURE} is not what the record says")
    PICTURE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
