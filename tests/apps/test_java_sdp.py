"""Java's own switch (`com.sun.sdp.conf`), and JDBC to PostgreSQL and MariaDB by their usual URLs."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support import Placement, check, placements
from support.procs import wait_until
from support.users import SERVANT

from test_postgres import PROGRAMS, USER, cluster  # noqa: F401

HERE = Path(__file__).parent / "java"
# A test machine is small: no parallel collector, no second compiler.
OPTIONS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
ALL_TCP = ("use tcp server * *:*", "use tcp client * *:*")
# The version in which Java lost the switch.
WITHOUT = 26


def version(home):
    """The feature number of a JDK."""
    found = re.search(r'^JAVA_VERSION="(\d+)', (home / "release").read_text(encoding="utf-8"), re.M)
    return int(found[1])


def kits():
    """JDKs that have the switch, by version, each once; that of the path if there are none in their usual place."""
    homes = {path.resolve().parents[1] for path in Path("/usr/lib/jvm").glob("*/bin/javac")}
    if not homes and (javac := shutil.which("javac")):
        homes = {Path(javac).resolve().parents[1]}
    found = {version(home): home for home in sorted(homes) if (home / "release").exists()}
    return [(number, found[number]) for number in sorted(found) if number < WITHOUT]


KITS = kits()


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """The compiled programs, for the oldest of the JDKs."""
    folder = tmp_path_factory.mktemp("classes")
    sources = [HERE / "Echo.java", HERE / "Jdbc.java"]
    subprocess.run([KITS[0][1] / "bin/javac", "-d", folder, *sources], check=True)
    return folder


class Switch:
    """Java's rule file of one run, and the options that name it; none over plain TCP, where no kernel knows SDP."""

    def __init__(self, stage, *lines):
        self.is_on = stage.placement is not Placement.PLAIN
        self.file = stage.dir / "sdp.conf"
        self.file.write_text("# Made by a test.\n" + "".join(f"{line}\n" for line in lines), encoding="utf-8")
        self.file.chmod(0o644)
        self.logs = stage.dir

    def options(self, name):
        """The options of one virtual machine, which logs what it converts under this name."""
        if not self.is_on:
            return []
        log = self.logs / f"{name}.sdp-log"
        return [f"-Dcom.sun.sdp.conf={self.file}", f"-Dcom.sun.sdp.debug={log}", "-Djava.net.preferIPv4Stack=true"]

    def check(self, name, what):
        """Java says that it converted sockets for `BIND` or `CONNECT`."""
        if self.is_on:
            log = (self.logs / f"{name}.sdp-log").read_text(encoding="utf-8")
            assert re.search(rf"^{what} to .*converted to SDP", log, re.M), log


def echo(kit, classes, server_kind, way="conf"):
    """Both kinds of client talk to one kind of server: SDP by Java's file alone (`conf`), or by the library's rules."""

    def scenario(stage):
        port = stage.port()
        rules, switch = (), None
        if way == "conf":
            rules = ALL_TCP
            switch = Switch(stage, f"bind 127.0.0.1 {port}", f"connect 127.0.0.0/8 {port}-{port}")

        def java(name):
            options = switch.options(name) if switch else []
            return [kit / "bin/java", *OPTIONS, *options, "-cp", classes, "Echo"]

        # 143: the virtual machine ends by SIGTERM after its shutdown hooks.
        argv = [*java("server"), f"{server_kind}-server", port]
        server = stage.server(server_kind, argv, port=port, rules=rules)
        nio = stage.client("nio", [*java("nio"), "nio-connected-client", port], rules=rules).text
        blocking = stage.client("blocking", [*java("blocking"), "blocking-client", port], rules=rules).text
        stage.stop(server)
        if switch:
            switch.check("server", "BIND")
            switch.check("nio", "CONNECT")
            switch.check("blocking", "CONNECT")
        return nio, blocking

    return scenario


@pytest.mark.parametrize("server_kind", ["nio", "blocking"])
@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP)
def test_conf(ladder, classes, server_kind, placement):
    """Every byte comes back, over SDP, although the library's rules say tcp for everything."""
    check(ladder, f"java-conf-{server_kind}", echo(KITS[0][1], classes, server_kind), placement, bulk=True)


@pytest.mark.parametrize("way", ["conf", "preload"])
@pytest.mark.parametrize("kit", [home for _, home in KITS], ids=[str(number) for number, _ in KITS])
def test_each_kit(ladder, classes, kit, way):
    """So with every JDK that is here, and with the library's rules alone."""
    check(ladder, f"java-{way}-{kit.name}", echo(kit, classes, "nio", way), Placement.BOTH, bulk=True)


def test_conf_without_the_library_there(ladder, classes):
    """SDP or nothing: Java is told of a refused connection."""
    kit = KITS[0][1]

    def scenario(stage):
        port = stage.port()
        switch = Switch(stage, f"connect * {port}")
        java = [kit / "bin/java", *OPTIONS]
        argv = [*java, "-cp", classes, "Echo", "blocking-server", port]
        server = stage.server("server", argv, port=port)
        argv = [*java, *switch.options("client"), "-cp", classes, "Echo", "blocking-client", port]
        done = stage.client("client", argv, ok=(1,))
        stage.stop(server)
        return done.err.decode()

    err, _ = ladder.play("java-conf-client", scenario, Placement.CLIENT)
    assert "java.net.ConnectException: Connection refused" in err, err


def postgres(stage, cluster):  # noqa: F811
    """PostgreSQL over a copy of the cluster; (program, URL)."""
    data = stage.dir / "data"
    subprocess.run(["cp", "-a", cluster, data], check=True)
    port = stage.port()
    argv = [PROGRAMS / "postgres", "-D", data, "-p", port, "-k", stage.dir]
    for setting in ("listen_addresses=127.0.0.1", "fsync=off", "max_connections=30"):
        argv += ["-c", setting]
    server = stage.server("postgres", argv, port=port, user=USER, stop=signal.SIGINT)
    ready = [*stage.space.prefix(), PROGRAMS / "pg_isready", "-q", "-h", "127.0.0.1", "-p", port]
    is_ready = lambda: subprocess.run([str(word) for word in ready], check=False).returncode == 0
    wait_until(is_ready, "PostgreSQL", 30)
    return server, port, f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=postgres"


def mariadb(stage, _):
    """MariaDB over nothing but an empty database, which asks nobody who he is; (program, URL)."""
    data = stage.folder("data", SERVANT)
    stage.folder("data/test", SERVANT)
    port = stage.port()
    argv = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={data}/socket", f"--port={port}"]
    argv += ["--bind-address=127.0.0.1", "--skip-grant-tables", "--innodb-flush-log-at-trx-commit=0"]
    argv += ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M"]
    server = stage.server("mariadbd", argv, port=port, user=SERVANT)
    return server, port, f"jdbc:mariadb://127.0.0.1:{port}/test?user=root"


DATABASES = {"postgres": (postgres, Path("/usr/share/java/postgresql.jar")),
             "mariadb": (mariadb, Path("/usr/share/java/mariadb-java-client.jar"))}


def database(kit, classes, name, cluster, way):  # noqa: F811
    """A database's client, with a second connection elsewhere that stays on TCP: by the library's rule (`preload`), or
    because Java's file names the database alone (`conf`)."""
    start, driver = DATABASES[name]

    def scenario(stage):
        server, port, url = start(stage, cluster)
        java = [kit / "bin/java", *OPTIONS]
        directory = stage.port()
        names = stage.server("names", [*java, "-cp", classes, "Echo", "blocking-server", directory], port=directory)
        rules, options = (f"use tcp client java *:{directory}",), []
        if way == "conf":
            switch = Switch(stage, f"connect 127.0.0.1 {port}")
            rules, options = ("use tcp client * *:*",), switch.options("client")
        stage.artifacts.public(classes)
        argv = [*java, *options, "-cp", f"{classes}:{driver}", "Jdbc", url, directory]
        text = stage.client("client", argv, rules=rules).text
        if way == "conf":
            switch.check("client", "CONNECT")
        if stage.placement is Placement.BOTH:
            report = stage.client_reports[-1]
            reasons = {reason: times for reason, times in report.raw["reasons"].items() if times}
            assert (report.seen, report.count("connections", "sdp"), reasons) == (2, 1, {"rule-tcp": 1}), report.describe()
        stage.stop(names)
        stage.stop(server)
        return text

    return scenario


@pytest.mark.parametrize("way", ["preload", "conf"])
@pytest.mark.parametrize("name", DATABASES)
@placements(Placement.PLAIN, Placement.BOTH, Placement.FLIP)
def test_jdbc(ladder, classes, cluster, name, way, placement):  # noqa: F811
    """By an unchanged URL: the rows are those of plain TCP; the database is on SDP, the second connection on TCP."""
    driver = DATABASES[name][1]
    if not driver.exists():
        pytest.skip(f"not installed: {driver}")
    scenario = database(KITS[0][1], classes, name, cluster, way)
    check(ladder, f"jdbc-{name}-{way}", scenario, placement, quiet=False)
