#!/usr/bin/env python3
"""Application benchmarks: real programs over TCP and over SDP, in turn.

Each round runs the pair once without the library and once under `sdp run`, in alternating order; the
figure is the median of the rounds, the ratio the median of the paired ratios with the whole spread
beside it. Servers bind 127.0.0.1 and are ended by pid. Nothing here decides a test.

    benches/apps.py [--rounds N] [--users one|two|root] [ROW …]        (without a row: all; `--help` names them)

`--users`, as root: both ends of one user (the default); servers of their package's user and clients of another one; root's server and
another user's clients, or the other way round where a server is never root's.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager

ROOT = pathlib.Path(__file__).resolve().parent.parent
# By itself: the tests' package asks for pytest.
sys.path.insert(0, str(ROOT / "tests" / "support"))
import ssh  # noqa: E402
import users as people  # noqa: E402

SDP = ROOT / "target" / "release" / "sdp"
POSTGRES = pathlib.Path("/usr/lib/postgresql/15/bin")
KINDS = {"one": people.ONE, "two": people.TWO, "root": people.ROOT_AND_USER}


def free_port():
    """A TCP port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, seconds=20):
    """Until somebody listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nobody listens on {port}")


def wait_for_listener(port, server, seconds=20):
    """Until a listener exists, without connecting: a server of one session would serve the probe."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nobody listens on {port}")


def wait_until_ready(command, seconds=30):
    """Until the command says yes: a server that listens may not answer yet."""
    end = time.monotonic() + seconds
    while subprocess.run(command, check=False).returncode != 0:
        if time.monotonic() > end:
            raise TimeoutError(f"{command} still says no")
        time.sleep(0.05)


def add_users(parser):
    """The option that says of which users the ends are."""
    parser.add_argument("--users", choices=KINDS, default="one", help="of which users the ends are; all but one: root only")


def users_of(options):
    """What it says."""
    if options.users != "one" and not people.may_choose():
        sys.exit("--users: root only")
    return people.Users(KINDS[options.users])


class Run:
    """Commands with or without the library, of which users, and where their bytes went."""

    def __init__(self, sdp, folder, users):
        self.sdp = sdp
        self.folder = folder
        self.users = users
        self.reports = []
        # Everybody writes here. The tool and the library, too, must be where every user can read them.
        folder.chmod(0o1777)
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name in ("sdp", "libsdp.so"):
            shutil.copy2(SDP.with_name(name), self.tools)

    def wrap(self, command, user):
        as_user = people.words(user)
        if not self.sdp:
            return [*as_user, *command]
        report = self.folder / f"report-{len(self.reports)}.json"
        self.reports.append(report)
        return [*as_user, str(self.tools / "sdp"), "run", "--report", str(report), "--", *command]

    def start(self, command, user=None, env=None):
        """Starts a server, as its package's user unless another one is named."""
        log = open(self.folder / "log", "ab")
        user = user or self.users.servant(os.path.basename(command[0]))
        return subprocess.Popen(self.wrap(command, user), stdout=log, stderr=log, cwd="/", env=env)

    def output(self, command, server=None):
        """What a client wrote; `server`: the name of the program whose client it is, for those that are never root's."""
        wrapped = self.wrap(command, self.users.client_of(server))
        return subprocess.run(
            wrapped, capture_output=True, text=True, timeout=120, check=True, cwd="/"
        ).stdout

    def share(self):
        """Part of all payload bytes that went over SDP."""
        sdp = tcp = 0
        for report in self.reports:
            # Written when the command has ended; every command has been waited for.
            text = report.read_text() if report.exists() else ""
            if not text:
                log = (self.folder / "log").read_text(errors="replace")
                raise RuntimeError(f"`sdp run` left no report; its log:\n{log}")
            counted = json.loads(text)["bytes"]
            sdp += counted["sdp_sent"] + counted["sdp_received"]
            tcp += counted["tcp_sent"] + counted["tcp_received"]
        return sdp / (sdp + tcp) if sdp + tcp else 0.0


def stop(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def redis(clients, load=("-t", "get"), requests=None):
    """Requests per second of so many clients."""
    requests = requests or (120000 if clients > 1 else 40000)

    def measure(run):
        port = free_port()
        server = run.start(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
             "--dir", str(run.folder)]
        )
        try:
            wait_for(port)
            out = run.output(
                ["redis-benchmark", "-p", str(port), "-n", str(requests), "-c", str(clients), "-q", *load]
            )
        finally:
            stop(server)
        return float(re.findall(r"([0-9.]+) requests per second", out)[-1])
    return measure


def redis_saving(run):
    """GET while the server's children save: one BGSAVE after the other."""
    port = free_port()
    server = run.start(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
         "--dir", str(run.folder)]
    )
    is_over = threading.Event()
    saves = []

    def save():
        with socket.create_connection(("127.0.0.1", port), 20) as s:
            # A save that is still running is answered with an error, which is as good.
            while not is_over.wait(0.05):
                s.sendall(b"BGSAVE\r\n")
                saves.append(s.recv(200).startswith(b"+"))

    try:
        wait_for(port)
        bench = ["redis-benchmark", "-p", str(port), "-q"]
        fill = ["-t", "set", "-n", "200000", "-r", "200000", "-d", "200", "-P", "32"]
        run.output([*bench, *fill])
        saver = threading.Thread(target=save)
        saver.start()
        try:
            get = ["-t", "get", "-n", "120000", "-r", "200000", "-c", "50"]
            out = run.output([*bench, *get])
        finally:
            is_over.set()
            saver.join()
    finally:
        stop(server)
    if not any(saves):
        raise RuntimeError("nothing was saved meanwhile")
    return float(re.findall(r"([0-9.]+) requests per second", out)[-1])


@contextmanager
def server_of_database(run, durable=False):
    """A PostgreSQL server, and how its programs reach it. `durable`: what it writes is on the disk when it says so."""
    binaries = POSTGRES
    data = run.folder / "pg"
    user = run.users.servant("postgres")
    data.mkdir()
    people.give(data, user)
    port = free_port()
    subprocess.run(
        [*people.words(user), binaries / "initdb", "-D", data, "-A", "trust", "-N", "-U", "postgres"],
        check=True, capture_output=True, cwd="/",
    )
    client = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]
    server = run.start(
        [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(data),
         "-c", "listen_addresses=127.0.0.1", "-c", f"fsync={'on' if durable else 'off'}"],
    )
    try:
        try:
            wait_for(port)
        except TimeoutError as error:
            raise TimeoutError((run.folder / "log").read_text()) from error
        wait_until_ready([binaries / "pg_isready", "-q", *client])
        yield client
    finally:
        stop(server)


@contextmanager
def database(run):
    """A PostgreSQL server, and what asks it: options of pgbench to select-only transactions per second."""
    pgbench = str(POSTGRES / "pgbench")
    with server_of_database(run) as client:
        subprocess.run([pgbench, *client, "-i", "-s", "2", "-q", "postgres"], check=True, capture_output=True, cwd="/")

        def ask(*options_of_pgbench):
            out = run.output([pgbench, *client, "-S", "-c", "4", "-n", *options_of_pgbench, "postgres"], "postgres")
            return float(re.search(r"tps = ([0-9.]+)", out).group(1))

        yield ask


def iperf3(run):
    """Bandwidth; and the CPU time of both ends per byte, as iperf3 counts it."""
    port = free_port()
    # One session, then the server ends by itself.
    server = run.start(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)])
    try:
        wait_for_listener(port, server)
        out = run.output(
            ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", "2", "-l", "131072", "-J"]
        )
        server.wait(20)
    finally:
        if server.poll() is None:
            stop(server)
    end = json.loads(out)["end"]
    used = end["cpu_utilization_percent"]
    seconds = end["sum_sent"]["seconds"]
    cpu_s = (used["host_total"] + used["remote_total"]) / 100 * seconds
    return end["sum_received"]["bits_per_second"] / 8e9, cpu_s / (end["sum_sent"]["bytes"] / 1e9)


NGINX = """
daemon off; master_process on; worker_processes 2; {user}
error_log {dir}/error.log; pid {dir}/pid;
events {{ worker_connections 1024; }}
http {{
    sendfile on; tcp_nopush on; access_log off; keepalive_requests 1000000000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{ listen 127.0.0.1:{port} reuseport; root {dir}; }}
}}
"""

APACHE = """
ServerRoot "{dir}"
ServerName localhost
PidFile "{dir}/pid"
ErrorLog "{dir}/error.log"
Listen 127.0.0.1:{port}
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
{user}
StartServers 25
MaxSpareServers 30
MaxRequestWorkers 30
KeepAlive On
MaxKeepAliveRequests 0
DocumentRoot "{dir}"
"""


def web(name, config, command, user, load):
    """Requests per second for a file of 1 KiB. `load`: the client, given the address."""
    def measure(run):
        with page(run, name, config, command, user) as ask:
            return ask(*load)
    return measure


@contextmanager
def page(run, name, config, command, user):
    """A web server with a file of 1 KiB, and what asks it: a client, given the address, to requests per second."""
    port = free_port()
    (run.folder / "page").write_bytes(b"x" * 1024)
    program = next(word for word in command if word in ("nginx", "apache2"))
    # Root starts the server and the workers become theirs, but where workers that are never root's have clients of the same user.
    workers, clients = run.users.servant(program), run.users.client_of(program)
    starts = workers if workers == clients else people.ROOT
    becomes = user.format(workers) if workers and starts == people.ROOT else ""
    path = run.folder / name
    path.write_text(config.format(dir=run.folder, port=port, user=becomes))
    argv = [str(path) if word == "CONFIG" else word for word in command]

    def ask(*load):
        out = run.output([*load, f"http://127.0.0.1:{port}/page"], program)
        failed = re.search(r"Socket errors|Non-2xx|Failed requests: +[1-9]", out)
        if failed:
            raise RuntimeError(out)
        return float(re.search(r"Requests(?:/sec| per second): +([0-9.]+)", out).group(1))

    server = run.start(argv, starts)
    try:
        wait_for_listener(port, server)
        yield ask
    finally:
        stop(server)


NGINX_AT = ("nginx.conf", NGINX, ["nginx", "-c", "CONFIG"], "user {};")


def nginx(*load):
    return web(*NGINX_AT, load)


# It ends by a signal to its process group, which would be ours.
APACHE_AT = ("apache.conf", APACHE, ["setsid", "apache2", "-D", "FOREGROUND", "-f", "CONFIG"], "User {0}\nGroup {0}")


def apache(*load):
    return web(*APACHE_AT, load)


def driver(run, name, *arguments):
    """Seconds that the client of one of the tests' C programs says it took, with a server of the same program."""
    program = run.folder / name
    source = ROOT / "tests" / "apps" / "drivers" / f"{name}.c"
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    port = free_port()
    server = run.start([str(program), "server", str(port)])
    try:
        wait_for_listener(port, server)
        out = run.output([str(program), "client", str(port), *map(str, arguments)])
    finally:
        stop(server)
    return float(re.search(r"([0-9.]+) s\b", out).group(1))


def sharing(run):
    """Requests per second on one connection that two processes of the server read, whoever comes first."""
    requests = 30000
    return requests / driver(run, "sharing", requests)


@contextmanager
def copying(run):
    """An sshd; yields what copies one file of 100 MB up, with the time that connecting takes."""
    folder = run.folder / "ssh"
    ssh.prepare(folder, run.users.client)
    size = 100_000_000
    (folder / "file").write_bytes(os.urandom(1_000_000) * (size // 1_000_000))
    port = free_port()
    options, who = ssh.client(folder)
    server = run.start(ssh.server(folder, port), people.may_choose() and people.ROOT)

    def ask():
        begin = time.monotonic()
        run.output(
            ["scp", *options, "-P", str(port), f"{folder}/file", f"{who}:{folder}/copy"]
        )
        seconds = time.monotonic() - begin
        if (folder / "copy").stat().st_size != size:
            raise RuntimeError("the copy is not whole")
        (folder / "copy").unlink()
        return size / 1e6 / seconds

    try:
        wait_for_listener(port, server)
        yield ask
    finally:
        stop(server)


def scp(run):
    with copying(run) as ask:
        return ask()


ROWS = {
    "redis1": ("redis GET, 1 client", "requests/s", redis(1), "redis-server"),
    "redis50": ("redis GET, 50 clients", "requests/s", redis(50), "redis-server"),
    # A SET first, so that there is what GET asks for.
    "redis-get64k": (
        "redis GET, 64 KiB values, 8 clients", "requests/s",
        redis(8, ("-t", "set,get", "-d", "65536"), 20000), "redis-server",
    ),
    "redis-set64k": (
        "redis SET, 64 KiB values, 8 clients", "requests/s",
        redis(8, ("-t", "set", "-d", "65536"), 20000), "redis-server",
    ),
    "redis-bgsave": ("redis GET, 50 clients, BGSAVE running", "requests/s", redis_saving, "redis-server"),
    "nginx": (
        "nginx, 1 KiB, 50 connections kept", "requests/s",
        nginx("wrk", "-t", "2", "-c", "50", "-d", "3s"), "nginx",
    ),
    "apache": (
        "Apache prefork, 1 KiB, 20 connections kept", "requests/s",
        apache("ab", "-q", "-k", "-n", "40000", "-c", "20"), "apache2",
    ),
    "sharing": (
        "64 B requests, two processes share the server's end after it got its lane", "requests/s", sharing, "cc",
    ),
    "scp": ("scp of 100 MB", "MB/s", scp, "sshd"),
    "iperf3": ("iperf3, 128 KiB writes", "GB/s", iperf3, "iperf3"),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    add_users(parser)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args()
    if not SDP.exists():
        sys.exit("build first: cargo xtask build")
    users = users_of(options)
    for row in options.rows or ROWS:
        title, unit, measure, program = ROWS[row]
        title += f", {users.kind}" * (options.users != "one")
        if not shutil.which(program):
            print(f"{title}: {program} is not installed")
            continue
        figures = {False: [], True: []}
        cpus = {False: [], True: []}
        shares = []
        for i in range(options.rounds):
            for sdp in (False, True) if i % 2 == 0 else (True, False):
                with tempfile.TemporaryDirectory(prefix="sdp-bench-") as folder:
                    run = Run(sdp, pathlib.Path(folder), users)
                    measured = measure(run)
                    if isinstance(measured, tuple):
                        measured, cpu = measured
                        cpus[sdp].append(cpu)
                    figures[sdp].append(measured)
                    if sdp:
                        shares.append(run.share())
        ratios = [b / a for a, b in zip(figures[False], figures[True])]
        print(
            f"{title}: TCP {statistics.median(figures[False]):.4g} {unit}, "
            f"SDP {statistics.median(figures[True]):.4g} {unit}, "
            f"ratio {statistics.median(ratios):.2f} [{min(ratios):.2f} - {max(ratios):.2f}], "
            f"{statistics.median(shares):.1%} of the bytes on SDP, {options.rounds} rounds",
            flush=True,
        )
        if cpus[True]:
            ratios = [b / a for a, b in zip(cpus[False], cpus[True])]
            print(
                f"{title}, CPU of both ends: TCP {statistics.median(cpus[False]):.3g} s/GB, "
                f"SDP {statistics.median(cpus[True]):.3g} s/GB, "
                f"ratio {statistics.median(ratios):.2f} [{min(ratios):.2f} - {max(ratios):.2f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
