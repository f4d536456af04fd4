"""What the runtimes' tests are made from: C programs, a Python package, Java jars.

Programs of this directory are compiled into a scratch directory of the session. Packages come by their
registries' own clients, once, into the cache that the third-party suites use too.
"""

import os
import shutil
import subprocess
from pathlib import Path

from thirdparty.cache import PYTHON, Cache, run

HERE = Path(__file__).resolve().parent
WAYS = HERE / "ways"
TARGET = Path(os.environ.get("SDP_TEST_TARGET", HERE.parent.parent / "target")).resolve()
UVLOOP = "uvloop==0.23.0"
COMPILE_LIMIT_S = 120


def compiled(place, name, sources, *flags):
    """A C program, or with `-shared` an object to load, in the directory `place`."""
    binary = Path(place) / name
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", binary, *sources, *flags],
        check=True,
        timeout=COMPILE_LIMIT_S,
    )
    return binary


def compiled_ways(place, name, *flags):
    """The program of `ways`, server and client, in the directory `place`."""
    sources = [WAYS / part for part in ("main.c", "ways.c", "uring.c")]
    return compiled(place, name, sources, *flags, "-luring")


class Runtimes(Cache):
    """The part of the cache that these tests add."""

    def __init__(self):
        super().__init__(TARGET)

    def uvloop(self):
        """An interpreter that has uvloop."""

        def make(place):
            run(PYTHON, "-m", "venv", place / "venv")
            run(place / "venv/bin/pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", UVLOOP)

        return self._made("uvloop", UVLOOP, make) / "venv/bin/python"

    def netty(self):
        """The directory with Netty's jars, its native transport for this kind of machine included."""
        wanted = HERE / "java" / "pom.xml"

        def make(place):
            shutil.copy(wanted, place)
            run("mvn", "-q", "-B", "-f", place / "pom.xml", f"-Dmaven.repo.local={place}/repository",
                "dependency:copy-dependencies", f"-DoutputDirectory={place}/jars")
            shutil.rmtree(place / "repository")

        return self._made("netty", wanted.read_text(), make) / "jars"
