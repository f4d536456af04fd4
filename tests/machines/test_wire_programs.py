"""Unmodified servers of the distribution and their clients on two machines: every reply is right, it went over a queue
pair, and the kernels saw no more TCP than the reports say."""

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from machines.shown import EVENT_S, halves
from machines.wire import RESUMED, sums, undisturbed
from support import ssh

IS_WHOLE = bool(os.environ.get("SDP_TEST_WHOLE"))
EXCHANGE = Path(__file__).parent / "programs" / "exchange.py"
APPS = Path(__file__).parents[1] / "apps"
PROGRAMS = Path("/usr/lib/postgresql/15/bin")
PORT = 7100
NGINX = """
daemon off; master_process on; worker_processes 2; user www-data;
error_log {dir}/error.log; pid {dir}/pid; events {{ worker_connections 64; }}
http {{
    sendfile on; tcp_nopush on; access_log off; keepalive_requests 100000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{ listen {address}:{port}; root {dir}/html; }}
}}
"""


def made(folder, name):
    """A folder in the tests' own, which every user of a guest can read."""
    path = folder / name
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module", name="cluster")
def _cluster(folder):
    """A database cluster, made here; what a guest writes goes to a copy of its own."""
    data = made(folder, "cluster") / "data"
    data.mkdir()
    subprocess.run(["chown", "postgres", data], check=True)
    words = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", PROGRAMS / "initdb"]
    words += ["-D", data, "-A", "trust", "-U", "postgres", "-N", "--wal-segsize=1"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd="/")
    with open(data / "pg_hba.conf", "a", encoding="utf-8") as rules:
        rules.write("host all all samenet trust\n")
    return data


@pytest.mark.integrity
@undisturbed
def test_postgresql(pair, ends, cluster):
    """A process for each connection meets by itself: many small queries, and a result of some size."""
    server = [PROGRAMS / "postgres", "-D", cluster, "-p", PORT, "-k", "/tmp", "-c", f"listen_addresses={pair.a.address}"]
    for setting in ("fsync=off", "max_connections=10", "shared_buffers=8MB", "autovacuum=off"):
        server += ["-c", setting]
    ends.serve(server, "postgres", PORT, stop="INT")
    psql = [PROGRAMS / "psql", "-h", pair.a.address, "-p", PORT, "-U", "postgres", "-X", "-A", "-t", "-q"]
    pair.b.run("{ echo 'drop table if exists t;'; echo 'create table t (id int primary key, w text);'\n"
               "echo 'insert into t select i, md5(i::text) from generate_series(1, 3000) i;'\n"
               "for i in $(seq 300); do echo \"select w from t where id = $i;\"; done\n"
               "echo 'select id, w from t order by id;'; } >/tmp/script.sql; chmod 644 /tmp/script.sql")
    done, client = ends.ask([*psql, "-f", "/tmp/script.sql", "postgres"])
    word = lambda i: hashlib.md5(b"%d" % i).hexdigest()
    expected = "".join(f"{word(i)}\n" for i in range(1, 301)) + "".join(f"{i}|{word(i)}\n" for i in range(1, 3001))
    assert done.text == expected
    # The client parts right behind the last answer: of it, too, what was not acknowledged goes once more by TCP.
    ends.judge(ends.stop(), [client], share=0.15, last=RESUMED // 2)


@pytest.mark.integrity
@undisturbed
def test_nginx(pair, ends, folder):
    """Workers of another user than the master: many small files on a kept connection, then large ones by sendfile."""
    own = made(folder, "nginx")
    html = made(own, "html")
    (html / "small").write_text("hello\n")
    big = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(4_000))
    (html / "big").write_bytes(big)
    (own / "conf").write_text(NGINX.format(dir="/tmp/nginx", address=pair.a.address, port=PORT))
    ends.serve(["nginx", "-c", own / "conf", "-p", "/tmp/nginx"], None, PORT,
               before=f"mkdir -p /tmp/nginx; ln -sfn {html} /tmp/nginx/html; ")
    base = f"http://{pair.a.address}:{PORT}"
    small, first = ends.ask(["curl", "-sS", f"{base}/small?[1-300]"], user="nobody")
    large, second = ends.ask(["curl", "-sS", f"{base}/small?[1-30]", f"{base}/big?[1-8]"])
    assert small.out == b"hello\n" * 300
    assert large.out == b"hello\n" * 30 + big * 8
    # One that moves small files only is nearly silent on TCP.
    moved = first["bytes"]
    server = ends.stop()
    ends.judge(server, [first, second], share=0.1, connections=2)
    ends.check_share((server, first), moved["sdp_received"], moved["tcp_received"], 0.8)


@pytest.mark.integrity
@undisturbed
def test_memcached(pair, ends):
    """Four connections, each served by one of two threads, store and read values of up to 10 KiB."""
    ends.serve(["memcached", "-l", pair.a.address, "-p", PORT, "-U", "0", "-t", "2"], "memcache", PORT)
    driver = APPS / "drivers" / "memcached_client.py"
    done, client = ends.ask(["/usr/bin/python3", driver, PORT, pair.a.address, 100], user="nobody")
    assert len(done.text.splitlines()) == 4, done
    ends.judge(ends.stop(), [client], share=0.3, connections=4)


@pytest.mark.integrity
@undisturbed
def test_netpipe(pair, ends):
    """NetPIPE compares each block by itself."""
    common = ["-p", 2, "-l", 1, "-u", 2000, "-i", "-P", PORT]
    ends.serve(["NPtcp", *common, "-o", "/tmp/netpipe.server"], "daemon", PORT)
    done, client = ends.ask(["NPtcp", "-h", pair.a.address, *common, "-o", "/tmp/netpipe.client"])
    text = (done.out + done.err).decode()
    sizes = re.findall(r"^ *\d+: +(\d+) bytes +\d+ times", text, re.M)
    assert len(sizes) >= 12 and text.count("Integrity check passed") == len(sizes), text
    ends.judge(ends.stop(), [client], share=0.9)


@pytest.mark.parametrize("connections", [1, 8] if IS_WHOLE else [8])
def test_iperf2(pair, ends, connections):
    """Streams one way: the client never reads, and yet meets. Without credit, bytes go by TCP. It sends until both ends have
    moved payload by a queue pair."""
    ends.serve(["iperf", "-s", "-B", pair.a.address, "-p", PORT], "nobody", PORT)
    words = ["iperf", "-c", pair.a.address, "-p", PORT, "-P", connections, "-t", 2 * EVENT_S, "-l", "16K", "-y", "C"]
    asked = ends.begin(words)

    def has_met(shown):
        used = [[half["sdp_bytes"] > 0 for half in halves(end)] for end in shown]
        return len(shown) == 2 * connections and [True, False] in used and [False, True] in used

    ends.until_all(has_met, asked)
    pair.b.run("pkill -INT -x iperf")
    done, client = ends.end(asked)
    rows = [line.split(",") for line in done.text.splitlines()]
    moved = [int(row[7]) for row in rows if row[5] != "-1"]
    assert len(moved) == connections and sum(moved) == sums(client, "sent"), (done, client)
    ends.judge(ends.stop(), [client], share=0)


if IS_WHOLE:

    def test_iperf3(pair, ends):
        """Both ways at once, beside the connection that governs them."""
        ends.serve(["iperf3", "-s", "-B", pair.a.address, "-p", PORT], "iperf3", PORT)
        done, client = ends.ask(["iperf3", "-c", pair.a.address, "-p", PORT, "-n", "8M", "-l", "16K", "--bidir", "-J"])
        assert "error" not in json.loads(done.out), done
        # The client ends with bytes unread, as over TCP.
        ends.judge(ends.stop(ok=(0, 1)), [client], share=0, is_whole=False)


@pytest.fixture(scope="module", name="classes")
def _classes(folder):
    """The compiled Java program."""
    classes = made(folder, "classes")
    subprocess.run(["javac", "-d", classes, APPS / "java" / "Echo.java"], check=True)
    return classes


@pytest.mark.integrity
@undisturbed
def test_java(pair, ends, classes):
    """A selector loop as server; four hundred messages of up to 9000 bytes, compared."""
    for guest in (pair.a, pair.b):
        guest.run(f"cp -r {classes} /tmp/classes; chmod -R a+rX /tmp/classes")
    java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx96m", f"-Daddress={pair.a.address}", "-Dbulk=300000"]
    java += ["-cp", "/tmp/classes", "Echo"]
    ends.serve([*java, "nio-server", PORT], "daemon", PORT)
    _, client = ends.ask([*java, "nio-client", PORT])
    ends.judge(ends.stop(ok=(143,)), [client], share=0.3)


@pytest.mark.integrity
@undisturbed
def test_ipv6(pair, ends):
    """Queue pairs between IPv6 addresses."""
    python = ["/usr/bin/python3", EXCHANGE]
    ends.serve([*python, "serve", PORT, "--family", 6], "daemon", PORT)
    done, client = ends.ask([*python, "ask", "fd00:9::1", PORT, "--rounds", 120])
    assert done.out == b"every byte\n"
    ends.judge(ends.stop(ok=(143,)), [client], share=0.5)


# A host with two networks: SDP is for the addresses of one.
RULES = "use both client * 10.9.0.0/24:*\\nuse tcp client * *:*\\n"


@pytest.mark.integrity
def test_rules_for_each_interface(pair, ends):
    """A server at two addresses of its machine, and one rule file on both machines: SDP at one, TCP at the other."""
    for guest, last in ((pair.a, 1), (pair.b, 2)):
        guest.run(f"ip addr add 10.9.1.{last}/24 dev eth0 2>/dev/null || true")
        guest.run(f"printf '{RULES}' >/tmp/rules.conf; chmod 644 /tmp/rules.conf")
    settings = ("--config", "/tmp/rules.conf", "--set", "fabrics=shm,verbs")
    ends.settings = settings
    python = ["/usr/bin/python3", EXCHANGE]
    ends.serve([*python, "serve", PORT], "daemon", PORT)
    # In this order: a process has the device of the first address at which it meets.
    done, over_sdp = ends.ask([*python, "ask", "10.9.0.1", PORT, "--rounds", 120], user="nobody")
    moved = over_sdp["bytes"]
    assert done.out == b"every byte\n" and over_sdp["fabrics"]["verbs"] == 1, over_sdp
    assert moved["sdp_sent"] > moved["tcp_sent"], over_sdp
    assert ends.wire.count()[1] > moved["sdp_sent"] + moved["sdp_received"]
    done, over_tcp = ends.ask([*python, "ask", "10.9.1.1", PORT, "--rounds", 20])
    tcp, rdma = ends.wire.count()
    moved = over_tcp["bytes"]
    assert done.out == b"every byte\n" and moved["sdp_sent"] + moved["sdp_received"] == 0, over_tcp
    assert tcp >= moved["tcp_sent"] + moved["tcp_received"] > rdma, (tcp, rdma, over_tcp)
    assert ends.stop(ok=(143,))["fabrics"]["verbs"] == 1


@pytest.mark.integrity
def test_sshd(pair, ends, folder):
    """sshd begins a program anew for each connection, and gives it away twice: every byte is right, whatever the lane."""
    keys = made(folder, "sshd") / "ssh"
    ssh.prepare(keys)
    pair.a.run(f"mkdir -p /run/sshd; cp -r {keys} /tmp/ssh; chmod -R go-rwx /tmp/ssh")
    pair.b.run(f"cp -r {keys} /tmp/ssh; chmod -R go-rwx /tmp/ssh; chown -R games /tmp/ssh; seq 300000 >/tmp/file; chmod 644 /tmp/file")
    server = [word.replace("127.0.0.1", pair.a.address) for word in ssh.server(Path("/tmp/ssh"), PORT)]
    ends.serve(server, None, PORT)
    common, _ = ssh.client(Path("/tmp/ssh"))
    who = f"root@{pair.a.address}"
    _, up = ends.ask(["scp", *common, "-P", PORT, "/tmp/file", f"{who}:/tmp/up"])
    _, down = ends.ask(["scp", *common, "-P", PORT, f"{who}:/tmp/up", "/tmp/down"])
    piped, _ = ends.ask(["ssh", *common, "-p", PORT, who, "cat | sha256sum"], stdin="/tmp/file")
    digest = pair.b.run("sha256sum </tmp/file").out
    assert piped.out == digest == pair.b.run("sha256sum </tmp/down").out == pair.a.run("sha256sum </tmp/up").out
    print(json.dumps([up, down]))
    print(json.dumps(ends.stop(ok=(0, 255))))
