"""What every end-to-end test uses: processes, network namespaces, reports and stages.

A test describes a *scenario*: which servers and clients run, and what the clients saw. A *stage*
runs it under one *placement* of the library (nowhere, at both ends, at one end) and collects what
the library reported. `check` compares the result with the same scenario over plain TCP.
"""

from .check import ONE_TOO, UNFLIPPED, check, placements
from .report import Report, assert_accelerated, assert_fell_back
from .stage import Placement, Stage

__all__ = [
    "ONE_TOO",
    "UNFLIPPED",
    "Placement",
    "Report",
    "Stage",
    "assert_accelerated",
    "assert_fell_back",
    "check",
    "placements",
]
