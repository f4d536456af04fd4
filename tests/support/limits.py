"""Limits of time count the time in which a test could run, not that of a wall clock.

A limit that is right on one machine is too short on a slower one, and on one whose processors others use. So limits are held
against a clock of their own: it stands still while processes wait for a processor (as the kernel tells, where it does), but for
a tenth of that time, and goes as slowly as this machine computes in comparison with the one on which limits were chosen.
"""

import os
import subprocess
import time

PRESSURE = "/proc/pressure/cpu"
# Of the time in which processes wait for a processor, so much counts: what hangs beside a busy suite is found, too.
COUNTED = 0.1
# Processor seconds of `work` on the machine on which limits were chosen.
USUAL_S = 0.006
NAME = "SDP_TEST_SLOWNESS"


def work():
    """Processor seconds of a fixed piece of work."""
    begun = time.thread_time()
    total = 0
    for number in range(100_000):
        total += number * number % 7
    assert total
    return time.thread_time() - begun


def measured():
    """How many times slower this machine is than that one; at least 1. Programs of a test find it in their environment."""
    if NAME not in os.environ:
        os.environ[NAME] = f"{max(1.0, min(work() for _ in range(5)) / USUAL_S):.2f}"
    return float(os.environ[NAME])


SLOWNESS = measured()


def waited():
    """Seconds in which some process of the machine waited for a processor; 0 if nobody tells."""
    try:
        with open(PRESSURE, encoding="ascii") as file:
            return int(file.readline().rpartition("=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0


def now():
    """Seconds by the clock of limits."""
    return (time.monotonic() - (1 - COUNTED) * waited()) / SLOWNESS


def hold():
    """Lets the limits of `subprocess` go by that clock, too."""
    assert subprocess._time in (time.monotonic, now)
    subprocess._time = now
