"""The fabric over RDMA verbs, on a device: the conformance suite of all fabrics, and what is its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from machines.guest import Guest

TOP = Path(__file__).resolve().parents[2]
# Tests that take most of the suite's time: they are a part by themselves.
LONG = ["story::random_stories", "threads::halves_work", "set_up::a_withdrawn_request", "set_up::private_data_of_every_size",
        "pressure::room_is_what_can_be_sent", "borrow::messages_may_be_released"]
# Tests that must have run, by part.
LEAST = {"most": 30, "long": len(LONG), "own-receives": 30}
BUILD = ["cargo", "test", "--no-run", "--message-format", "json", "-p", "sdp-fabric-verbs", "--test", "machine"]

# What ends queue pairs in the middle of work fails on some runs, for a reason that is not known yet:
# docs/known-defects.md. All of it is run where SDP_TEST_WHOLE is set.
UNSURE = [] if os.environ.get("SDP_TEST_WHOLE") else ["conformance::error::", "conformance::one_sided::"]


def program():
    """Path of the suite's program, built first."""
    done = subprocess.run(BUILD, cwd=TOP, env=os.environ, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    made = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    (path,) = (m["executable"] for m in made if m.get("executable") and m["target"]["name"] == "machine")
    return path


@pytest.mark.parametrize("part", LEAST)
def test_conformance_on_a_device(kernel, part):
    """Every test of a part of the suite ran, and none failed. In a guest of its own, since one of them removes the device. One
    part is another once more, with a receive queue for each queue pair."""
    path = program()
    guest = Guest(kernel)
    try:
        guest.wait_up()
        words = LONG if part == "long" else [word for name in (*UNSURE, *LONG) for word in ("--skip", name)]
        settings = f"SDP_VERBS_ADDRESS={guest.address}" + (" SDP_VERBS_OWN_RECEIVES=1" if part == "own-receives" else "")
        done = guest.run(f"{settings} {path} {' '.join(words)} 2>&1", limit_s=400, ok=(0, 1))
    finally:
        guest.close()
    last = [line for line in done.text.splitlines() if " passed, " in line]
    assert last and int(last[-1].split()[0]) >= LEAST[part] and " 0 failed" in last[-1], done.text[-3000:]
    print(last[-1])
