"""Test suites of event loops and network libraries: not one test fails that passes without the library.

Twisted, tornado, trio and gevent from PyPI; tokio from crates.io; libuv and libevent from the
distribution's sources. Each suite runs plain, under the library, and under the library with lanes that
flip; `support.foreign` compares test by test. Of what is too long for every run a part takes turns by
the rotation. `SDP_TEST_WHOLE=1` runs everything, of libuv and libevent also what has little to do
with sockets.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from conftest import TARGET
from support import Placement
from support.foreign import ROTATION, WHOLE, Comparison, Suite, rotated

from thirdparty.cache import TOKIO_TESTS, Cache

RUNNER = Path(__file__).parent / "runner.py"
BOTH_WAYS = pytest.mark.parametrize(
    "placement", [Placement.BOTH, Placement.FLIP], ids=["normal", "flip"]
)

# Modules of unittest's kind that run always.
ALWAYS = [
    "twisted.internet.test.test_tcp",
    "tornado.test.iostream_test",
    "gevent.tests.test__socket",
    "gevent.tests.test__server",
]
# … that take turns.
TURNS = [
    "twisted.internet.test.test_asyncioreactor",
    "twisted.internet.test.test_core",
    "twisted.internet.test.test_endpoints",
    "twisted.internet.test.test_epollreactor",
    "twisted.internet.test.test_fdset",
    "twisted.internet.test.test_newtls",
    "twisted.internet.test.test_posixbase",
    "twisted.internet.test.test_posixprocess",
    "twisted.internet.test.test_process",
    "twisted.internet.test.test_sigchld",
    "twisted.internet.test.test_socket",
    "twisted.internet.test.test_stdio",
    "twisted.internet.test.test_threads",
    "twisted.internet.test.test_tls",
    "twisted.internet.test.test_udp",
    "twisted.internet.test.test_unix",
    "twisted.protocols.test.test_basic",
    "twisted.protocols.test.test_tls",
    "twisted.test.test_amp",
    "twisted.test.test_ftp",
    "twisted.test.test_internet",
    "twisted.test.test_loopback",
    "twisted.test.test_process",
    "twisted.test.test_sni",
    "twisted.test.test_socks",
    "twisted.test.test_ssl",
    "twisted.test.test_stdio",
    "twisted.test.test_tcp",
    "twisted.test.test_threadpool",
    "twisted.test.test_unix",
    "tornado.test.asyncio_test",
    "tornado.test.http1connection_test",
    "tornado.test.httpclient_test",
    "tornado.test.httpserver_test",
    "tornado.test.ioloop_test",
    "tornado.test.netutil_test",
    "tornado.test.process_test",
    "tornado.test.simple_httpclient_test",
    "tornado.test.tcpclient_test",
    "tornado.test.tcpserver_test",
    "tornado.test.web_test",
    "tornado.test.websocket_test",
    "gevent.tests.test__backdoor",
    "gevent.tests.test__close_backend_fd",
    "gevent.tests.test__core_fork",
    "gevent.tests.test__core_watcher",
    "gevent.tests.test__fileobject",
    "gevent.tests.test__greenio",
    "gevent.tests.test__makefile_ref",
    "gevent.tests.test__monkey_select",
    "gevent.tests.test__monkey_selectors",
    "gevent.tests.test__os",
    "gevent.tests.test__pywsgi",
    "gevent.tests.test__select",
    "gevent.tests.test__selectors",
    "gevent.tests.test__server_pywsgi",
    "gevent.tests.test__signal",
    "gevent.tests.test__socket_close",
    "gevent.tests.test__socket_errors",
    "gevent.tests.test__socket_ex",
    "gevent.tests.test__socket_send_memoryview",
    "gevent.tests.test__socket_timeout",
    "gevent.tests.test__socketpair",
    "gevent.tests.test__ssl",
    "gevent.tests.test__subprocess",
]
# How many of them a rotation draws, and those of the usual run: TLS, processes, HTTP, waiting.
TURNS_A_RUN = 4
TURNS_FIXED = [
    "twisted.internet.test.test_tls",
    "twisted.internet.test.test_process",
    "tornado.test.httpserver_test",
    "gevent.tests.test__selectors",
]
# Of gevent, programs that are one test each: their exit status is the outcome.
PROGRAMS = [
    "gevent.tests.test__core_loop_run",
    "gevent.tests.test__monkey_sigchld",
    "gevent.tests.test__monkey_sigchld_2",
    "gevent.tests.test__monkey_sigchld_3",
    "gevent.tests.test__monkey_sigchld_wakeup_fd",
    "gevent.tests.test__subprocess_interrupted",
    "gevent.tests.test__subprocess_poll",
]
PROGRAMS_A_RUN = 2
PROGRAMS_FIXED = ["gevent.tests.test__monkey_sigchld", "gevent.tests.test__subprocess_interrupted"]
# Of trio, those with sockets, descriptors, processes or signals.
TRIO_ALWAYS = ["_tests.test_socket"]
TRIO_TURNS = [
    "_core._tests.test_guest_mode",
    "_core._tests.test_io",
    "_core._tests.test_ki",
    "_core._tests.test_run",
    "_tests.test_dtls",
    "_tests.test_highlevel_generic",
    "_tests.test_highlevel_open_tcp_listeners",
    "_tests.test_highlevel_open_tcp_stream",
    "_tests.test_highlevel_open_unix_stream",
    "_tests.test_highlevel_serve_listeners",
    "_tests.test_highlevel_socket",
    "_tests.test_highlevel_ssl_helpers",
    "_tests.test_signals",
    "_tests.test_ssl",
    "_tests.test_subprocess",
    "_tests.test_threads",
    "_tests.test_unix_pipes",
]
TRIO_A_RUN = 3
TRIO_FIXED = [
    "_core._tests.test_io",
    "_tests.test_highlevel_serve_listeners",
    "_tests.test_subprocess",
]
# Of libuv and libevent, the groups of tests (by the beginning of their names) from which the draw is made.
LIBUV = re.compile(
    r"tcp|poll|shutdown|ipc|connection|delayed|close|fork|callback|pipe|watcher|loop|spawn|signal"
    r"|we_get|listen|multiple_listen|connect_|readable|not_|getsockname|emfile|socket|handle|eintr"
    r"|walk|threadpool"
)
LIBUV_A_RUN = 45
LIBEVENT = re.compile(r"(main|bufferevent|http|listener|evbuffer|et|thread)/")
LIBEVENT_A_RUN = 50
# Suites that fill the buffers of peers who do not read meanwhile: megabytes, but no connection whose ends
# take turns, so that none gets to meet. With the payload from which some must have moved nevertheless.
FILLERS = {"gevent.tests.test__socket": 20_000_000, "tokio.tcp_stream": 100_000_000}
# Tests that hold times of a tenth of a second against each other: they may fail on a busy machine and are not
# drawn.
TIMED = re.compile("timeout|close_detection|ratelim|_slow|active_later|persistent|common_timeout")


class Package(Suite):
    """One module of a Python package."""

    def __init__(self, cache, name):
        super().__init__(name)
        self.python = cache.python()
        self.little = FILLERS.get(name, self.little)

    def command(self, record, names):
        return [self.python, RUNNER, self.name, record, *names]

    def names(self, stage):
        return stage.client("list", self.command("-", ()), plain=True).text.split()


class Script(Suite):
    """A module that is a program: it has passed when it ends well."""

    def __init__(self, cache, name):
        super().__init__(name)
        self.python = cache.python()

    def command(self, record, names):
        # As a child: what the shell says is seen even if the program is killed.
        return ["sh", "-c", '"$0" -m "$1"; echo "status $?"', self.python, self.name]

    def outcomes(self, record, output):
        ended = re.search(r"^status (\d+)\n?\Z", output, re.M)
        if not ended:
            return {self.name: "crash"}, True
        return {self.name: "ok" if ended[1] == "0" else "fail"}, True

    def names(self, stage):
        return [self.name]


class Trio(Suite):
    """One file of trio's tests, which need pytest."""

    def __init__(self, cache, name):
        super().__init__(f"trio.{name}")
        self.python = cache.python()

    def command(self, record, names):
        only = ["ONLY=" + "\n".join(names)] if names else []
        return ["env", f"RECORD={record}", *only, *self._pytest()]

    def _pytest(self):
        return [self.python, "-m", "pytest", "-q", "-p", "outcomes", "-p", "no:cacheprovider",
                "-p", "trio._tests.pytest_plugin", "--pyargs", self.name]

    def environment(self):
        return {"PYTHONPATH": str(RUNNER.parent)}

    def names(self, stage):
        found = stage.client("list", self._pytest(), plain=True, env=self.environment(), ok=(0, 5))
        return [line for line in found.text.splitlines() if "::" in line]


class Tokio(Suite):
    """One of tokio's test programs; libtest's lines."""

    def __init__(self, name, program):
        super().__init__(name)
        self.program = program
        self.little = FILLERS.get(name, self.little)

    line = re.compile(r"^test (?P<name>\S+)(?: - should panic)? \.\.\. (?P<word>ok|FAILED|ignored)", re.M)
    words = {"ok": "ok", "FAILED": "fail", "ignored": "skip"}

    def command(self, record, names):
        return [self.program, "--test-threads=2", *(["--exact", *names] if names else [])]

    def outcomes(self, record, output):
        found = {match["name"]: self.words[match["word"]] for match in self.line.finditer(output)}
        return found, "test result:" in output

    def names(self, stage):
        listed = stage.client("list", [self.program, "--list"], plain=True)
        return re.findall(r"^(\S+): test$", listed.text, re.M)


class Libuv(Suite):
    """libuv's tests, one process each beside its helpers; lines of TAP."""

    line = re.compile(r"^(?P<word>ok|not ok) \d+ - (?P<name>\w+)(?P<skip> # SKIP)?", re.M)
    # Beside poll_unidirectional, tcp_ref4 and tcp_write_queue_order, which fill buffers.
    always = ("tcp_ping_pong",)
    # The suite refuses to be root's.
    user = "nobody" if os.geteuid() == 0 else None
    limit_s = 900

    def __init__(self, program, fixtures):
        super().__init__("libuv")
        self.program = program
        self.fixtures = fixtures

    def environment(self):
        return {"UV_TEST_TIMEOUT_MULTIPLIER": "3"}

    def command(self, record, names):
        # The program takes one name; no names means all.
        script = (
            'program=$1; mkdir -p test; cp -r "$2" test; shift 2; for t; do "$program" $t; done; true'
        )
        return ["sh", "-c", script, "sh", self.program, self.fixtures, *names]

    def outcomes(self, record, output):
        found = {}
        for match in self.line.finditer(output):
            word = "ok" if match["word"] == "ok" else "fail"
            found[match["name"]] = "skip" if match["skip"] else word
        return found, True

    def names(self, stage):
        listed = stage.client("list", [self.program, "--list"], plain=True, user=self.user)
        names = re.findall(r"^(\w+)", listed.text, re.M)
        return [name for name in names if WHOLE or LIBUV.match(name)]


class Libevent(Suite):
    """libevent's tests, a process each, one after the other."""

    limit_s = 900
    name_line = re.compile(r"^(\w+/\w+): ", re.M)

    def __init__(self, program):
        super().__init__("libevent")
        self.program = program

    def command(self, record, names):
        return [self.program, "--timeout", "60", *names]

    def outcomes(self, record, output):
        found = {}
        parts = self.name_line.split(output)
        for name, text in zip(parts[1::2], parts[2::2]):
            if "FAILED]" in text:
                found[name] = "fail"
            elif "SKIPPED" in text or "DISABLED" in text:
                found[name] = "skip"
            else:
                found[name] = "ok" if "OK" in text else "crash"
        return found, True

    def names(self, stage):
        listed = stage.client("list", [self.program, "--list-tests"], plain=True)
        names = re.findall(r"^ *(\w+/\w+)", listed.text, re.M)
        if WHOLE:
            return names
        return [name for name in names if LIBEVENT.match(name) and not TIMED.search(name)]


@pytest.fixture(scope="module")
def cache():
    """Fetched and built once."""
    return Cache(TARGET)


@pytest.fixture(scope="module")
def comparison(ladder):
    """Plain outcomes, shared by the two ways."""
    print(f"rotation {ROTATION}")
    return Comparison(ladder)


@BOTH_WAYS
@pytest.mark.parametrize("module", ALWAYS + rotated(TURNS, TURNS_A_RUN, "modules", TURNS_FIXED))
def test_python(comparison, cache, module, placement):
    """A module of Twisted, tornado or gevent."""
    comparison.check(Package(cache, module), placement)


@BOTH_WAYS
@pytest.mark.parametrize("module", rotated(PROGRAMS, PROGRAMS_A_RUN, "programs", PROGRAMS_FIXED))
def test_program(comparison, cache, module, placement):
    """A program among gevent's tests."""
    comparison.check(Script(cache, module), placement)


@BOTH_WAYS
@pytest.mark.parametrize("module", TRIO_ALWAYS + rotated(TRIO_TURNS, TRIO_A_RUN, "trio", TRIO_FIXED))
def test_trio(comparison, cache, module, placement):
    """A file of trio's."""
    comparison.check(Trio(cache, module), placement)


@BOTH_WAYS
@pytest.mark.parametrize("program", TOKIO_TESTS)
def test_tokio(comparison, cache, program, placement):
    """One of tokio's programs."""
    comparison.check(Tokio(f"tokio.{program}", cache.tokio()[program]), placement)


@BOTH_WAYS
def test_libuv(comparison, cache, ladder, placement):
    """libuv's tests of streams, polling, processes and signals; all its tests if everything is asked for."""
    program = cache.libuv()
    # Where every user can read them.
    readable = ladder.artifacts.dir / program.name
    fixtures = ladder.artifacts.dir / "fixtures"
    if not readable.exists():
        shutil.copytree(cache.source("libuv1") / "test/fixtures", fixtures)
        shutil.copy2(program, readable)
    comparison.check(Libuv(readable, fixtures), placement, sample=LIBUV_A_RUN)


@BOTH_WAYS
def test_libevent(comparison, cache, placement):
    """libevent's tests of sockets, buffers and HTTP; all that are not off by default, likewise."""
    comparison.check(Libevent(cache.libevent()), placement, sample=LIBEVENT_A_RUN)
