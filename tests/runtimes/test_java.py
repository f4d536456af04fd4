"""Java past its own library: Netty's native epoll transport, and a program's own native code."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support import Placement, check, placements

from .cache import HERE, Runtimes, compiled

JAVA = HERE / "java"
# A test machine is small: no parallel collector, no second compiler.
OPTIONS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
LIMIT_S = 120
PLACEMENTS = (Placement.PLAIN, Placement.BOTH, Placement.FLIP, Placement.CLIENT)


def java_compiled(place, source, *options):
    """Classes of a program."""
    subprocess.run(["javac", *options, "-d", place, JAVA / source], check=True, timeout=LIMIT_S)
    return place


@pytest.fixture(scope="module")
def netty(tmp_path_factory):
    """The class path of the program on Netty."""
    jars = f"{Runtimes().netty()}/*"
    return f"{java_compiled(tmp_path_factory.mktemp('netty'), 'Netty.java', '-cp', jars)}:{jars}"


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """Class path and library of the program with native code."""
    place = tmp_path_factory.mktemp("native")
    home = Path(shutil.which("javac")).resolve().parent.parent / "include"
    flags = ["-shared", "-fPIC", f"-I{home}", f"-I{home}/linux"]
    return java_compiled(place, "Native.java"), compiled(place, "libnative.so", [JAVA / "native.c"], *flags)


def talk(stage, command):
    """A server, a client that talks to it; what that saw."""
    port = stage.port()
    # 143: the virtual machine ends by SIGTERM after its shutdown hooks.
    server = stage.server("server", command("server", port), port=port)
    text = stage.client("client", command("client", port)).text
    stage.stop(server)
    return text


@pytest.mark.parametrize("mode", ["EDGE_TRIGGERED", "LEVEL_TRIGGERED"])
@placements(*PLACEMENTS)
def test_netty(ladder, netty, placement, mode):
    """The transport calls libc from its own library, and trusts edges."""

    def command(role, port):
        return ["java", *OPTIONS, "-cp", netty, "Netty", role, mode, port]

    check(ladder, f"netty-{mode}", lambda stage: talk(stage, command), placement, bulk=True)


@placements(*PLACEMENTS)
def test_native(ladder, native, placement):
    """send and recv on a Java socket's descriptor, in turn with Java's own calls."""
    classes, library = native

    def command(role, port):
        opened = ["--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"]
        return ["java", *OPTIONS, *opened, "-cp", classes, "Native", role, port, library]

    check(ladder, "native", lambda stage: talk(stage, command), placement, bulk=True)
