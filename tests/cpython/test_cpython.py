"""CPython's own tests of sockets, waiting, processes and protocols: not one fails that passes without
the library.

Each module runs plain, under the library, and under the library with lanes that flip at random
positions on every call; `support.foreign` compares the outcomes test by test. What is closest to the
library runs always: the core whole, of the long modules of processes and signals some tests. Of the
rest a part runs: some short modules whole, of some long ones a few tests. It is always the same
part unless a rotation is asked for, which draws another one. `SDP_TEST_WHOLE=1` runs everything.
"""

import os
from pathlib import Path

import pytest

from support import Placement
from support.foreign import ROTATION, WHOLE, Comparison, Suite, rotated

PYTHON = "/usr/bin/python3.11"
RUNNER = Path(__file__).parent / "runner.py"

CORE = [
    "test_socket",
    "test_selectors",
    "test_epoll",
    "test_poll",
    "test_select",
    "test_asyncio.test_streams",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_events",
    "test_ssl",
    "test_httplib",
    "test_socketserver",
    "test_os",
]
# A few seconds each.
SHORT = [
    "test_asyncore",
    "test_asynchat",
    "test_smtplib",
    "test_smtpd",
    "test_nntplib",
    "test_telnetlib",
    "test_docxmlrpc",
    "test_urllib2_localnet",
    "test_httpservers",
    "test_wsgiref",
    "test_posix",
    "test_pty",
    "test_fcntl",
    "test_file_eintr",
    "test_fork1",
    "test_asyncio.test_unix_events",
    "test_asyncio.test_base_events",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_server",
    "test_asyncio.test_selector_events",
    "test_asyncio.test_transports",
    "test_asyncio.test_runners",
]
# From half a minute to minutes, with the number of tests that run each time.
SAMPLED = {
    "test_subprocess": 40,
    "test_signal": 12,
    "test_multiprocessing_fork": 32,
    "test_multiprocessing_forkserver": 24,
    "test_multiprocessing_spawn": 8,
}
# Ten seconds each: not drawn.
SLOW = "test_signal.SiginterruptTest."
# From ten seconds to minutes.
LONG = [
    "test_ftplib",
    "test_imaplib",
    "test_poplib",
    "test_xmlrpc",
    "test_logging",
    "test_threading",
    "test_faulthandler",
    "test_concurrent_futures",
    "test_multiprocessing_main_handling",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_ssl",
    "test_asyncio.test_sslproto",
    "test_asyncio.test_subprocess",
]
# How many of them a rotation draws, and those of the usual run: HTTP, event loops, processes; TLS,
# threads, two connections for one session.
SHORT_A_RUN = 5
SHORT_FIXED = [
    "test_httpservers",
    "test_smtplib",
    "test_fork1",
    "test_asyncio.test_unix_events",
    "test_asyncio.test_server",
]
LONG_A_RUN = 3
LONG_FIXED = ["test_ftplib", "test_threading", "test_asyncio.test_ssl"]
# Tests of each long module that takes turns.
SAMPLE = 8
BOTH_WAYS = pytest.mark.parametrize(
    "placement", [Placement.BOTH, Placement.FLIP], ids=["normal", "flip"]
)
pytestmark = pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"not installed: {PYTHON}")


class Module(Suite):
    """One module of the distribution's `test` package."""

    limit_s = 400

    def command(self, record, names):
        return [PYTHON, RUNNER, self.name, record, *names]

    def names(self, stage):
        found = stage.client("list", self.command("-", ()), plain=True).text.split()
        return [name for name in found if WHOLE or SLOW not in name]


@pytest.fixture(scope="module")
def comparison(ladder):
    """Plain outcomes, shared by the two ways."""
    return Comparison(ladder)


@BOTH_WAYS
@pytest.mark.parametrize("module", CORE + rotated(SHORT, SHORT_A_RUN, "short", SHORT_FIXED))
def test_module(comparison, module, placement):
    """A whole module."""
    comparison.check(Module(module), placement)


@BOTH_WAYS
@pytest.mark.parametrize("module", [*SAMPLED, *rotated(LONG, LONG_A_RUN, "long", LONG_FIXED)])
def test_sample(comparison, module, placement):
    """Some tests of a long module, by the rotation."""
    print(f"rotation {ROTATION}")
    comparison.check(Module(module), placement, sample=SAMPLED.get(module, SAMPLE))
