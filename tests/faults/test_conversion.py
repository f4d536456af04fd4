"""Explicit conversion: sockets that a program asks for by the families of the historic SDP stack."""

import contextlib
import errno
import json
import subprocess
from pathlib import Path

import pytest

from .harness import EAGER, PROGRAMS, SDP, compiled, run

INET, INET6 = 2, 10
EARLY, SDP4, SDP6 = 26, 27, 28
HEADERS = Path(__file__).resolve().parents[2] / "packaging"
TCP_RULES = ["--rule", "use tcp server * *:*", "--rule", "use tcp client * *:*"]
LIMIT_S = 30


def told(*args, plain=False, **options):
    """The outcome of a scenario of conversion.c, and its line."""
    outcome = run([compiled("conversion.c"), *args], sdp=not plain, env=EAGER, **options)
    assert outcome.code == 0, outcome.describe()
    return outcome, json.loads(outcome.out)


@contextlib.contextmanager
def listener(*command, family=INET):
    """A listener of conversion.c that is no part of the run; its port."""
    process = subprocess.Popen([*command, compiled("conversion.c"), "hear", str(family)], stdout=subprocess.PIPE)
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def test_families():
    """Streams are made; what the historic stack refused is refused with its error; neighbours are the kernel's."""
    _, plain = told("families", plain=True)
    _, seen = told("families")
    made, refused = seen[:4], seen[4:7]
    assert made == [0, 0, 0, 0]
    assert refused == [errno.ESOCKTNOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EPROTONOSUPPORT]
    assert seen[7:] == [errno.EINVAL, *plain[8:]]


def test_without_the_library():
    """Nothing has changed: the kernel knows no such family."""
    _, plain = told("families", plain=True)
    assert set(plain[1:7]) == {errno.EAFNOSUPPORT}


TALKS = [
    (EARLY, INET, INET),
    (EARLY, EARLY, EARLY),
    (SDP4, INET, INET),
    (SDP4, SDP4, SDP4),
    (SDP4, EARLY, SDP4),
    (SDP6, INET6, INET6),
    (SDP6, SDP6, SDP6),
]


@pytest.mark.parametrize("way", [[], ["syscall"]], ids=["libc", "syscall"])
@pytest.mark.parametrize("talk", TALKS, ids=str)
def test_talk(talk, way):
    """Both families in addresses are taken, IP's are told, and the bytes go over SDP whatever the rules say."""
    outcome, seen = told("talk", *talk, *way, options=TCP_RULES)
    assert seen == [INET6 if talk[0] == SDP6 else INET] * 6
    report = outcome.report
    assert report.seen == report.raw["connections"]["sdp"] == 2, outcome.describe()
    assert report.sdp_bytes > 0 and not report.raw["reasons"].get("rule-tcp"), outcome.describe()


def test_rules_hold_for_others():
    """The same rules keep an ordinary socket on TCP, and IP's own families in addresses are all that it takes."""
    outcome, seen = told("talk", INET, INET, INET, options=TCP_RULES)
    assert seen == [INET] * 6 and outcome.report.sdp_bytes == 0, outcome.describe()


@pytest.mark.parametrize("family", [EARLY, SDP4])
def test_no_library_at_the_other_end(family):
    """SDP or nothing, as the historic stack had no TCP."""
    with listener() as port:
        outcome, code = told("reach", family, "127.0.0.1", port)
    assert code == errno.ECONNREFUSED and outcome.report.seen == 0, outcome.describe()


def test_library_at_the_other_end():
    """An ordinary listener will do, if its program has the library."""
    with listener(SDP, "run", "--no-config", "--") as port:
        assert told("reach", SDP4, "127.0.0.1", port)[1] == 0


def test_no_way_there():
    assert told("reach", SDP4, "192.0.2.1", 9)[1] == errno.ENETUNREACH


@pytest.mark.parametrize("family", [SDP4, INET])
def test_options(family):
    """80 is kept and told, within its limits; 81 tells what the last `bind` of an explicit socket came to."""
    _, seen = told("options", family)
    is_explicit = family == SDP4
    assert seen == {
        "unset": [-1, -1],
        "values": [[0, 0], [0, 4096], [0, 65536], [0, 1048576]]
        + [[errno.EINVAL, 1048576]] * 4,
        "copy": 1048576,
        "bad": [errno.EINVAL, errno.EFAULT, errno.EFAULT, errno.EFAULT],
        "short": 1,
        "bind": [0, -errno.EADDRNOTAVAIL if is_explicit else 0, 0, errno.ENOPROTOOPT],
        "keepalive": [0, 1, errno.ENOPROTOOPT],
    }


def test_bad_addresses():
    """What is wrong with an address the kernel tells."""
    _, plain = told("bad", INET, plain=True)
    assert told("bad", SDP4)[1] == plain


def test_lives():
    """A server that forks, a socket put over another one's number, one that is disconnected and used again."""
    outcome, _ = told("lives", options=TCP_RULES)
    report = outcome.report
    assert report.seen == 4 and not report.raw["reasons"].get("rule-tcp"), outcome.describe()
    assert report.sdp_bytes > 0, outcome.describe()


def test_where_the_library_is_not():
    """A vfork child and a sandbox get the kernel's answer; in a new image the socket is an ordinary one."""
    _, (vforked, historic, ordinary, sandboxed) = told("elsewhere")
    assert vforked == sandboxed == errno.EAFNOSUPPORT
    assert (historic, ordinary) == (errno.EAFNOSUPPORT, 0)


def test_a_client_without_the_library():
    """A listener that was asked for takes TCP, too: there is one socket to listen on."""
    with listener(SDP, "run", "--no-config", "--", family=SDP4) as port:
        assert told("reach", INET, "127.0.0.1", port, plain=True)[1] == 0


def test_strangers_cost_nothing(tmp_path):
    """`socket`, `bind`, `connect` and options of others: the same system calls as without the library."""

    def calls(*preload):
        trace = tmp_path / "trace"
        command = ["strace", "-o", trace, *preload, compiled("conversion.c"), "foreign"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S)
        lines = trace.read_text(encoding="utf-8").splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("socket(AF_UNIX"))
        return [line.split("(")[0] for line in lines[first:]]

    assert calls("-E", f"LD_PRELOAD={SDP.parent / 'libsdp.so'}") == calls()


CONVERSIONS = {
    "26": "#define AF_INET_SDP 26",
    "27": "#define AF_INET_SDP 27",
    "sdp.h": "#include <sdp.h>",
    "26 and sdp.h": "#define AF_INET_SDP 26\n#include <sdp.h>",
}


@pytest.mark.parametrize("line", CONVERSIONS.values(), ids=CONVERSIONS.keys())
def test_guide(line, tmp_path):
    """The guide's conversion: its one line, and the family in `socket`. The payload goes over SDP; without the library
    the program says so."""
    source = (PROGRAMS / "guide.c").read_text(encoding="utf-8")
    assert source.count("socket(AF_INET, ") == 2
    converted = tmp_path / "converted.c"
    converted.write_text(line + "\n" + source.replace("socket(AF_INET, ", "socket(AF_INET_SDP, "), encoding="utf-8")
    binary = tmp_path / "converted"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}"]
    subprocess.run(["gcc", *flags, converted, "-o", binary], check=True)

    outcome = talk(binary)
    assert outcome.out == "2000 lines came back\n", outcome.describe()
    report = outcome.report
    payload = 2 * sum(len(f"line {i}\n") for i in range(2000))
    total = report.sdp_bytes + report.tcp_bytes
    assert total == payload and report.sdp_bytes > 0.9 * payload, outcome.describe()

    plain = run([binary, "server"], sdp=False)
    assert plain.code == 1 and plain.err.startswith("socket: "), plain.describe()


def talk(binary):
    """The guide's server and client, each under the library; the client's outcome."""
    words = [SDP, "run", "--no-config", "--", binary, "server"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        port = int(server.stdout.readline())
        return run([binary, "client", port], options=TCP_RULES, limit_s=LIMIT_S)
    finally:
        server.terminate()
        server.wait()


def test_the_program_before_its_conversion():
    """The same program is TCP under those rules."""
    outcome = talk(compiled("guide.c"))
    assert outcome.code == 0 and outcome.report.sdp_bytes == 0, outcome.describe()
    assert outcome.report.raw["reasons"].get("rule-tcp") == 1, outcome.describe()


def test_header_alone(tmp_path):
    """Twice, in the oldest C; what the program defined stays."""
    source = tmp_path / "one.c"
    lines = "#define SOL_SDP 7\n#include <sdp.h>\n#include <sdp.h>\nint numbers[] = {AF_INET6_SDP, PF_INET_SDP, SOL_SDP};\n"
    source.write_text(lines, encoding="utf-8")
    flags = ["-std=c90", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}"]
    subprocess.run(["gcc", *flags, "-c", source, "-o", tmp_path / "one.o"], check=True)
