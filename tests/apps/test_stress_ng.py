"""stress-ng's stressors of sockets and descriptors, with its own verification; operations, not time.

One program is both ends, so there is no placement on one side. It ends with status 0 only if every
stressor did all its operations and found every byte as it should be.
"""

import re

import pytest

from support import Placement, check

TCP = ("--sock-domain", "ipv4", "--sock-type", "stream")

# Name of the scenario: (stressor, operations, more options, whether it is played with flips: with `sendmsg` a connection
# has two or three calls, of which perhaps none is chosen).
STRESSORS = {
    "sock": ("sock", 150, (*TCP, "--sock-opts", "send"), True),
    "sock-sendmsg": ("sock", 150, (*TCP, "--sock-opts", "sendmsg"), False),
    "sock-sendmmsg": ("sock", 60, (*TCP, "--sock-opts", "sendmmsg"), True),
    "sockmany": ("sockmany", 1000, (), False),
    "sockabuse": ("sockabuse", 50, (), False),
    "sockfd": ("sockfd", 5000, (), False),
    "epoll": ("epoll", 2000, ("--epoll-domain", "ipv4"), False),
    "dup": ("dup", 200, (), False),
    "fork": ("fork", 200, (), False),
    "sendfile": ("sendfile", 500, (), False),
    "splice": ("splice", 2000, (), False),
}
CASES = [
    pytest.param(name, placement, id=f"{name}-{placement.value}")
    for name, (*_, flips) in STRESSORS.items()
    for placement in (Placement.PLAIN, Placement.BOTH, *[Placement.FLIP] * flips)
]


def scenario(stressor, operations, options):
    """The stressor's operations as it counts them."""

    def run(stage):
        argv = ["stress-ng", f"--{stressor}", "1", f"--{stressor}-ops", operations, *options]
        argv += ["--verify", "--metrics-brief", "--no-rand-seed", "--temp-path", stage.dir]
        if stressor in ("sock", "sockabuse", "epoll"):
            argv += [f"--{stressor}-port", stage.port()]
        done = stage.client("stress-ng", argv)
        text = (done.out + done.err).decode()
        assert "successful run completed" in text and "skipped" not in text, text
        counted = re.search(rf"\] {stressor} +(\d+) ", text)
        assert counted and int(counted.group(1)) >= operations, text
        return "every operation"

    return run


@pytest.mark.parametrize("name, placement", CASES)
def test_stressor(ladder, name, placement):
    """No stressor fails."""
    stressor, operations, options, _ = STRESSORS[name]
    check(ladder, f"stress-{name}", scenario(stressor, operations, options), placement, quiet=False)
