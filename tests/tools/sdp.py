"""Running `sdp` in an environment without anything of ours."""

import os
import subprocess

LIMIT_S = 60


def environment(**extra):
    """The environment without anything of ours, and `extra`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "LD_", "LIBSDP_"))}
    env.pop("SIMPLE_LIBSDP", None)
    return {**env, **extra}


def sdp(ladder, *arguments, **options):
    """Runs `sdp`."""
    options.setdefault("env", environment())
    command = [*options.pop("before", []), ladder.artifacts.sdp, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, text=True, **options)
