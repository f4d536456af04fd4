"""Programs that are linked with musl: the library is loaded by a bare LD_PRELOAD, and stands aside."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("musl.c")
TARGET = Path(os.environ.get("SDP_TEST_TARGET", Path(__file__).resolve().parents[2] / "target")) / "release"
LIBRARY, SDP = TARGET / "libsdp.so", TARGET / "sdp"
FINE = "child talked\nfine\n"


@pytest.fixture(name="program", scope="module")
def _program(tmp_path_factory):
    binary = tmp_path_factory.mktemp("musl") / "musl"
    subprocess.run(["musl-gcc", "-O1", "-Wall", "-Werror", "-o", binary, SOURCE], check=True, timeout=60)
    loaded = subprocess.run(["readelf", "-l", binary], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "/lib/ld-musl" in loaded, "this is no program of musl's"
    return binary


@pytest.mark.parametrize("env", [{}, {"LD_PRELOAD": str(LIBRARY)}, {"LD_PRELOAD": str(LIBRARY), "SDP_PROMOTE_CALLS": "0"}])
def test_a_variable(program, env):
    """The program begins and does what it does; nothing is said."""
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin", **env})
    assert (done.returncode, done.stdout, done.stderr) == (0, FINE, "")


def test_a_run(program, tmp_path):
    """`sdp run` sees only the program of glibc's that it executes, which has no connection."""
    report = tmp_path / "report.json"
    done = subprocess.run([SDP, "run", "--report", report, "--", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, FINE), done
    assert json.loads(report.read_text(encoding="utf-8"))["connections"] == {"seen": 0, "sdp": 0, "tcp": 0}
    done = subprocess.run([SDP, "run", "--require", "--", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 123 and "musl" in done.stderr, done
