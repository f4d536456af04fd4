"""Ways to reach a socket: libc's names in every spelling, `syscall`, plug-ins, io_uring, no libc at all."""

import pytest

from support import Placement, check, placements
from support.check import check_sums
from support.stage import python

from .cache import HERE, WAYS, compiled, compiled_ways

# Each goes through names that the library has.
SEEN = ["libc", "vectors", "syscall", "fortified", "second", "plugin"]
# Each calls the kernel, or a libc, that the library has no hand in.
UNSEEN = ["inline", "deepbind", "dlmopen", "uring-raw", "uring-lib", "uring-all", "static"]
# The direction, as the one end sees it, that the library sees at both ends.
ONE_DIRECTION = {"inline-recv": "sent", "inline-send": "received", "inline-poll": "sent"}
# Which end goes the unusual way.
ROLES = ["server", "client"]
OTHERS = {"server": "client", "client": "server"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program, its static twin and the plug-in."""
    place = tmp_path_factory.mktemp("ways")
    return {
        "plugin": compiled(place, "plugin.so", [WAYS / "plugin.c"], "-shared", "-fPIC"),
        "dynamic": compiled_ways(place, "ways", "-ldl"),
        "static": compiled_ways(place, "ways-static", "-static", "-DWAYS_STATIC"),
        "numbers": compiled(place, "numbers", [WAYS / "numbers.c"]),
    }


def conversation(programs, ways, **options):
    """One client talks to one server, each its own way; what the client saw."""

    def command(role, port):
        way = ways.get(role, "libc")
        if way == "static":
            return [programs["static"], role, "libc", port]
        return [programs["dynamic"], role, way, port]

    def scenario(stage):
        env = {"WAYS_PLUGIN": str(programs["plugin"]), **options.get("env", {})}
        tunables = options.get("tunables")
        port = stage.port()
        server = stage.server("server", command("server", port), port=port, env=env, tunables=tunables)
        text = stage.client("client", command("client", port), env=env, tunables=tunables).text
        stage.stop(server)
        return text

    return scenario


def played(ladder, programs, ways, placement=Placement.BOTH, **options):
    """The scenario beside its plain run, which must be the same; reports by role."""
    name = "ways-" + "-".join(f"{role}-{way}" for role, way in sorted(ways.items()))
    plain = ladder.plain(name, conversation(programs, ways))
    result, stage = ladder.play(name, conversation(programs, ways, **options), placement)
    assert result == plain, f"differs from plain TCP: {result!r}, expected {plain!r}"
    for report in stage.server_reports + stage.client_reports:
        check_sums(report)
    return {"server": stage.server_reports[0], "client": stage.client_reports[0]}


@pytest.mark.parametrize("way", SEEN)
@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP)
def test_seen(ladder, programs, placement, way):
    """Both ends go this way, and the bytes go over SDP."""
    ways = {"server": way, "client": way}
    check(ladder, f"ways-{way}", conversation(programs, ways), placement, bulk=True)


@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP)
def test_numbers(ladder, programs, placement):
    """Every call that concerns a connection, made by its number: the bytes go over SDP, and each call answers as over TCP."""

    def scenario(stage):
        port = stage.port()
        server = stage.server("server", [programs["numbers"], "server", str(port)], port=port)
        text = stage.client("client", [programs["numbers"], "client", str(port)]).text
        stage.stop(server)
        return text

    check(ladder, "ways-numbers", scenario, placement, bulk=True)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("way", UNSEEN)
def test_unseen(ladder, programs, way, role):
    """One end goes past the library: TCP, and the other end says that nobody came to meet it."""
    reports = played(ladder, programs, {role: way})
    one, other = reports[role], reports[OTHERS[role]]
    assert one.sdp_bytes == 0 and other.sdp_bytes == 0, other.describe()
    assert other.count("reasons", "peer-not-listening") == 1, other.describe()
    # What the library saw of the one end is no more than its socket.
    assert one.tcp_bytes == 0, one.describe()
    assert one.raw["reasons"].get("too-young", 0) == one.seen, one.describe()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("way", ONE_DIRECTION)
def test_one_direction(ladder, programs, way, role):
    """What is seen at both ends goes over SDP, the other direction over TCP."""
    reports = played(ladder, programs, {role: way})
    seen = ONE_DIRECTION[way]
    unseen = {"sent": "received", "received": "sent"}[seen]
    # A sender whose waits nobody sees is not told to wait for room in the ring: it goes on over TCP.
    least = 0 if way == "inline-poll" else 3 << 20
    assert reports[role].count("bytes", f"sdp_{seen}") > least, reports[role].describe()
    assert reports[role].count("bytes", f"sdp_{unseen}") == 0, reports[role].describe()


@pytest.mark.parametrize("placement", [Placement.SERVER, Placement.CLIENT], ids=lambda p: p.value)
def test_static_both(ladder, programs, placement):
    """Two static programs: preloading either is no more than an unused variable."""
    ways = {"server": "static", "client": "static"}
    plain = ladder.plain("ways-static", conversation(programs, ways))
    result, stage = ladder.play("ways-static", conversation(programs, ways), placement)
    assert result == plain
    assert all(r.seen == 0 for r in stage.server_reports + stage.client_reports)


def test_deepbind_dropped(ladder, programs):
    """The flag is taken away on request; then the plug-in's calls are seen."""
    ways = {"server": "deepbind", "client": "deepbind"}
    reports = played(ladder, programs, ways, env={"SDP_DLOPEN_DEEPBIND": "drop"})
    for report in reports.values():
        assert report.sdp_bytes > 6 << 20, report.describe()


@pytest.mark.parametrize("way", ["uring-raw", "uring-lib", "uring-all"])
def test_io_uring_denied(ladder, programs, way):
    """With `io_uring=deny` such programs do what they do on a kernel without it."""
    reports = played(ladder, programs, {"server": way, "client": way}, tunables={"io_uring": "deny"})
    for report in reports.values():
        assert report.sdp_bytes > 6 << 20, report.describe()


def ctypes_talk(one, other):
    """Two Python programs that find `send` and `recv` by ctypes: in the program, or in libc's file."""

    def scenario(stage):
        port = stage.port()
        driver = [python(), HERE / "programs" / "foreign.py"]
        server = stage.server("server", [*driver, "server", one, str(port)], port=port)
        text = stage.client("client", [*driver, "client", other, str(port)]).text
        stage.stop(server)
        return text

    return scenario


@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP)
def test_ctypes_global(ladder, placement):
    """`CDLL(None)` looks names up as the program does."""
    check(ladder, "ctypes-global", ctypes_talk("global", "global"), placement, bulk=True)


@pytest.mark.parametrize("role", ROLES)
def test_ctypes_file(ladder, role):
    """`CDLL("libc.so.6")` asks that file: past the library."""
    scenario = ctypes_talk(*("file" if end == role else "global" for end in ROLES))
    plain = ladder.plain(f"ctypes-file-{role}", scenario)
    result, stage = ladder.play(f"ctypes-file-{role}", scenario, Placement.BOTH)
    assert result == plain
    reports = {"server": stage.server_reports[0], "client": stage.client_reports[0]}
    assert reports["server"].sdp_bytes == reports["client"].sdp_bytes == 0
    other = reports[OTHERS[role]]
    assert other.count("reasons", "peer-not-listening") == 1, other.describe()
