"""Writes to a file how long its machine stood still, in seconds, each time that it did so for a tenth of one.

    pulse.py FILE
"""

import sys
import time

# Another name than that of tests' servers, which are ended by theirs.
NAME = "pulse"
SLEEP_S = 0.02
STILL_S = 0.1


def main():
    """Ends by a signal."""
    with open("/proc/self/comm", "w", encoding="utf-8") as own:
        own.write(NAME)
    with open(sys.argv[1], "a", encoding="utf-8", buffering=1) as told:
        last = time.monotonic()
        while True:
            time.sleep(SLEEP_S)
            now = time.monotonic()
            if now - last > SLEEP_S + STILL_S:
                told.write(f"{now - last:.2f}\n")
            last = now


main()
