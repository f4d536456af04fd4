"""Programs whose payload does not go over SDP to 95 %, with the share that does and the reason.

Each entry is a promise in both directions: the test fails if the share falls below the listed one.
"""

# Scenario: (least share of the payload after the first 64 KiB of each direction, reason).
EXCEPTIONS = {}
