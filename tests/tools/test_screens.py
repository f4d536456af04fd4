"""Screens and pages that are not as usual: `sdp top` on terminals of every size, tools among pages of rubbish and of
ten thousand connections."""

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from support.procs import wait_until
from tools.sdp import environment, sdp
from tools.test_tools import pair

pytestmark = pytest.mark.quick

LIMIT_S = 20
LAYOUT = 4
PAGE, HEADER, ROW, ROWS = 4096 + 4096 * 320 + 4096, 4096, 320, 4096
ESCAPE = re.compile(rb"\x1b\[[?0-9;]*[A-Za-z]")


def lines_of(picture):
    """Its lines, without what moves the cursor."""
    return [ESCAPE.sub(b"", line).decode().strip("\r") for line in picture.split(b"\n")]


class Screen:
    """`sdp top` on a terminal of its own."""

    def __init__(self, ladder, columns, rows, *arguments):
        self.master, slave = pty.openpty()
        self.slave = slave
        self.resize(columns, rows)
        self.before = termios.tcgetattr(slave)
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(
            [ladder.artifacts.sdp, "top", "--interval", "0.1", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment(TERM="xterm"), start_new_session=True,
        )
        self.seen = b""

    def resize(self, columns, rows):
        """Another size of the window."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds=0.5):
        """What is written meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536)
        return self.seen

    def picture(self):
        """The lines of the last whole picture."""
        self.seen = b""
        pictures = wait_until(lambda: len(p := self.read(0.2).split(b"\x1b[H")) > 2 and p, "a picture")
        return lines_of(pictures[-2])

    def press(self, keys):
        """Keys."""
        os.write(self.master, keys)

    def end(self):
        """Waits for the end; the terminal must be as it was."""
        code = self.process.wait(LIMIT_S)
        self.read(0.2)
        assert self.seen.endswith(b"\x1b[?25h\x1b[?1049l"), self.seen[-80:]
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.master)
        os.close(self.slave)
        return code


@pytest.mark.parametrize("columns, rows", [(80, 24), (40, 10), (20, 5), (200, 50)])
def test_a_screen_fits_its_terminal(ladder, columns, rows):
    """Lines, columns, keys; `q` ends it and gives the terminal back."""
    with pair(ladder, "--no-config"):
        screen = Screen(ladder, columns, rows)
        lines = screen.picture()
        assert len(lines) == rows and max(map(len, lines)) <= columns, lines
        assert lines[-1].startswith("q end")
        assert any("PROGRAM" in line for line in lines)
        screen.press(b"q")
        assert screen.end() == 0


def test_keys_do_what_they_say(ladder):
    """Views, lanes, pause, sizes that change, rubbish on the keyboard."""
    with pair(ladder, "--no-config"):
        screen = Screen(ladder, 100, 20)
        assert "v procs" in screen.picture()[-1] and "? help" in screen.picture()[-1]
        screen.press(b"v")
        assert "v conns" in screen.picture()[-1]
        screen.press(b"?")
        assert any(line.startswith("REASON    why") for line in screen.picture())
        screen.press(b"?")
        assert not any(line.startswith("REASON    why") for line in screen.picture())
        screen.press(b"l")
        assert "l sdp" in screen.picture()[-1]
        screen.press(b"\x1b[B\x1b[5~\x1b\xff\x00zzz")
        screen.picture()
        screen.press(b" ")
        assert screen.picture()[0].startswith("PAUSED")
        screen.read(0.3)
        screen.resize(50, 8)
        screen.press(b"s")
        screen.seen = b""
        os.kill(screen.process.pid, signal.SIGWINCH)
        last = screen.read(0.5).split(b"\x1b[H")[-1]
        lines = lines_of(last)
        assert len(lines) == 8 and max(map(len, lines)) <= 50, lines
        screen.press(b"\x03")
        assert screen.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(ladder, number):
    """As a key does."""
    screen = Screen(ladder, 80, 24)
    screen.picture()
    screen.process.send_signal(number)
    assert screen.end() == 0


def page(seed, is_page):
    """A page of rubbish; if `is_page`, with a header that readers take for one."""
    rng = random.Random(seed)
    page_bytes = bytearray(rng.randbytes(PAGE))
    if is_page:
        page_bytes[:24] = b"sdpstats" + struct.pack("<IIII", LAYOUT, HEADER, ROW, ROWS)
        struct.pack_into("<I", page_bytes, 36, ROWS)
        for row in range(ROWS):
            struct.pack_into("<I", page_bytes, HEADER + row * ROW, 2)
    return bytes(page_bytes)


@contextlib.contextmanager
def publishing(pages):
    """Processes that publish these pages."""
    pids = []
    try:
        for content in pages:
            ready, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                fd = os.memfd_create("sdp-stats")
                os.write(fd, content)
                os.write(told, b"x")
                signal.pause()
                os._exit(0)
            pids.append(pid)
            assert os.read(ready, 1) == b"x"
            os.close(ready)
            os.close(told)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def every_view(ladder):
    """What each tool prints, and how long the slowest took."""
    slowest = 0
    for command in (
        [ladder.artifacts.sdp, "stat"],
        [ladder.artifacts.sdp, "stat", "--json"],
        [ladder.artifacts.sdp, "stat", "--prometheus"],
        [ladder.artifacts.sdp, "top", "--once", "--interval", "0.1"],
        [ladder.artifacts.sdp, "top", "--json", "--interval", "0.1"],
        [ladder.artifacts.dir / "sdpnetstat", "-Sanpe"],
    ):
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment())
        slowest = max(slowest, time.monotonic() - start)
        assert done.returncode == 0 and done.stderr == b"", (command, done.returncode, done.stderr[-500:])
        assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", done.stdout), command
        if "--json" in command:
            json.loads(done.stdout)
    return slowest


def test_pages_of_rubbish_do_no_harm(ladder):
    """No crash, nothing for the terminal; what else is there is shown as ever."""
    pages = [page(seed, is_page=seed % 2 == 0) for seed in range(6)] + [b"", page(9, True)[:5000]]
    with pair(ladder, "--no-config") as (parent, *_), publishing(pages):
        every_view(ladder)
        (own,) = json.loads(sdp(ladder, "stat", "--json", "--pid", parent).stdout)["processes"]
        assert own["seen"] == 1


def test_ten_thousand_connections_are_shown(ladder):
    """In seconds, not minutes, on a small machine; the screen answers its keys."""
    with publishing([page(seed, True) for seed in (2, 4, 6)]):
        assert every_view(ladder) < 10
        screen = Screen(ladder, 80, 24)
        assert len(screen.picture()) == 24
        screen.press(b"q")
        assert screen.end() == 0
