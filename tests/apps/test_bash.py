"""bash's /dev/tcp: read, echo and a program that inherits the connection."""

import hashlib
from pathlib import Path

from support import UNFLIPPED, check, placements
from support.stage import python

SERVER = Path(__file__).parent / "drivers" / "line_server.py"
SCRIPT = """
exec 3<>/dev/tcp/127.0.0.1/$0
for i in $(seq 60); do read -r -u 3 line; echo "ack $line" >&3; done
read -r -u 3 first
echo "first: $first"
cat <&3
seq 1 5000 >&3
exec 3>&-
"""


def conversation(stage):
    """Lines in turn, then the rest by cat, then output of seq."""
    port = stage.port()
    server = stage.server("server", [python(), SERVER, str(port)], port=port)
    out = stage.client("bash", ["bash", "-c", SCRIPT, str(port)]).out
    code = server.wait(30)
    said = server.output()
    stage.stop(server)
    assert code == 0, said
    return hashlib.sha256(out).hexdigest(), len(out), said


@placements(*UNFLIPPED)
def test_conversation(ladder, placement):
    """Every line arrives in order, whoever reads it."""
    check(ladder, "bash", conversation, placement)
