"""The library in other people's processes: on their stacks, beside their handlers, under their debuggers."""

import re
import shutil
import subprocess

import pytest

from .harness import EAGER, TARGET, compiled, run

LIBRARY = TARGET / "release" / "libsdp.so"
# What a call may take of its thread's stack: a handler has an alternate one of 8 KiB.
STACK = 4096
CALLS = ["send", "writev", "sendmsg", "recv", "recvmsg", "poll", "ppoll", "select", "epoll_wait"]
ASLEEP = ["recv-asleep", "poll-asleep", "epoll_wait-asleep"]
ABOUT = ["getsockopt", "setsockopt", "ioctl", "fcntl", "epoll_ctl", "dup", "dup2", "socket", "connect", "close_range", "shutdown"]
WAYS = pytest.mark.parametrize("env", [{}, EAGER], ids=["earned", "eager"])


def play(program, *words, env, flags=()):
    """A case on its lanes."""
    outcome = run([compiled(program, *flags), *words], env=env)
    assert outcome.code == 0, outcome.describe()
    assert outcome.report.count("connections", "sdp") == 2, outcome.describe()
    return outcome


@WAYS
@pytest.mark.parametrize("how", ["jump", "says", "repair"])
@pytest.mark.parametrize("way", ["send", "recv"])
def test_a_file_is_cut(way, how, env):
    outcome = play("shrinks.c", way, how, env=env)
    assert outcome.seen == {"fine": True, "faults": True}, outcome.describe()


@WAYS
def test_a_jump_out_of_half_a_message(env):
    """Who waits for the end of another thread's message is told when a jump ends it."""
    assert play("torn.c", env=env).seen == {"told": True}


@WAYS
@pytest.mark.parametrize("stack", [(), ("alt",)], ids=["own-stack", "alternate"])
@pytest.mark.parametrize("call", ["raise", "recv", "poll", "select", "epoll_wait"])
def test_a_handler_walks_to_main(call, stack, env):
    outcome = play("frames.c", "walk", call, *stack, env=env, flags=["-rdynamic"])
    assert outcome.seen == {"main": True}, outcome.describe()


@WAYS
def test_a_trace_on_a_connection(env):
    outcome = play("frames.c", "trace", env=env, flags=["-rdynamic"])
    assert outcome.seen == {"same": True}, outcome.describe()
    assert outcome.report.count("demotions", "stdio") > 0, outcome.describe()


@pytest.mark.parametrize("call", CALLS + ASLEEP + ABOUT)
def test_little_stack(call):
    outcome = play("frames.c", "paint", call, env=EAGER, flags=["-rdynamic"])
    assert 0 < outcome.seen["bytes"] <= STACK, outcome.describe()
    assert play("frames.c", "small", call, env=EAGER, flags=["-rdynamic"]).seen == {"done": True}


def test_no_function_has_a_name_of_libcs():
    """A debugger that is told `call shutdown(fd, 2)` takes the first function of that name for which a library has
    information."""
    if not shutil.which("readelf"):
        pytest.skip("not installed: readelf")
    exports = subprocess.run(["readelf", "--dyn-syms", "--wide", LIBRARY], capture_output=True, text=True, check=True)
    names = {line.split()[7].split("@")[0] for line in exports.stdout.splitlines() if " FUNC " in line}
    assert {"shutdown", "close", "send", "poll"} <= names
    told = subprocess.run(["readelf", "--debug-dump=info", "--wide", LIBRARY], capture_output=True, text=True, check=True)
    found = set(re.findall(r"DW_AT_name\s*:(?: \(indirect[^)]*\):)? (\S+)", told.stdout))
    assert not found & names, sorted(found & names)
