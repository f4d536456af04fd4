"""Debian's own units under a real systemd, with the settings that they ship and the drop-in of `sdp service enable`.

Clients are of other users than the servers. The counters of both ends say by which lane payload went.
"""

import json
import os
import re
from pathlib import Path

import pytest

from support.report import Report

CLIENT = "games"
BENCHMARK = ("redis-benchmark", "-c", "4", "-n", "20000", "-d", "1000", "-t", "set,get", "--csv")
AB = ("ab", "-q", "-k", "-c", "4", "-n", "4000")


def enable(booted, unit, *options):
    """Gives a unit the library, and does what the tool says then."""
    done = booted.run("sdp", "service", "enable", *options, unit)
    told = re.search(r"^to have it: (.*)$", done.stdout, re.M).group(1)
    assert told == f"systemctl daemon-reload && systemctl restart {unit}.service"
    booted.start(unit)
    return done


def ask(booted, *command, user=CLIENT):
    """Runs a client with the library; its report."""
    booted.run("rm", "-f", "/tmp/report.json")
    booted.run("sdp", "run", "--no-config", "--report", "/tmp/report.json", "--", *command, user=user)
    return Report(command[0], json.loads(booted.read("/tmp/report.json")))


def share(report):
    """Of all payload."""
    return report.sdp_bytes / (report.sdp_bytes + report.tcp_bytes)


def check_by_sdp(booted, unit, *reports):
    """Both ends have counted that most of the payload went over SDP."""
    told = booted.run("sdp", "service", "status", unit).stdout
    assert f"{unit}.service: " in told
    assert float(re.search(r"; ([\d.]+) % of ", told).group(1)) >= 90, told
    for report in reports:
        assert share(report) >= 0.9, report.describe()


@pytest.mark.parametrize("user", [CLIENT, "root", "redis"])
def test_redis(booted, user):
    """Its unit maps the user ids of root and redis alone, and refuses most system calls; its clients are of a third user, or of these."""
    enable(booted, "redis-server")
    report = ask(booted, *BENCHMARK, user=user)
    if user == CLIENT and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 9):
        assert report.sdp_bytes == 0 and "peer-not-listening" in report.raw["reasons"], report.describe()
        assert "uid-unmapped" in booted.run("sdp", "service", "status", "redis-server").stdout
        return
    check_by_sdp(booted, "redis-server", report)


def test_memcached(booted):
    """It starts as root, changes its user, and may make no namespaces."""
    driver = (Path(__file__).parents[1] / "apps/drivers/memcached_client.py").read_text(encoding="utf-8")
    booted.write("/tmp/memcached_client.py", driver)
    enable(booted, "memcached")
    check_by_sdp(booted, "memcached", ask(booted, "/usr/bin/python3", "/tmp/memcached_client.py", 11211))


def test_nginx(booted):
    """A master of root's, whose workers are of another user."""
    enable(booted, "nginx")
    check_by_sdp(booted, "nginx", ask(booted, *AB, "http://127.0.0.1/"))


def test_haproxy(booted):
    """In a directory of its own (chroot), between a client and nginx; it is told by systemd of a new configuration."""
    enable(booted, "nginx")
    listen = "listen sdp\n    bind 127.0.0.1:8080\n    server nginx 127.0.0.1:80\n"
    booted.run("tee", "-a", "/etc/haproxy/haproxy.cfg", text_in=listen)
    enable(booted, "haproxy")
    check_by_sdp(booted, "haproxy", ask(booted, *AB, "http://127.0.0.1:8080/"))
    booted.run("systemctl", "reload", "haproxy")
    check_by_sdp(booted, "nginx", ask(booted, *AB, "http://127.0.0.1:8080/"))


def test_postgresql(booted):
    """An instance of a template, started by a script that changes the user; a process for each connection."""
    booted.run("pg_createcluster", "--port", "5499", "15", "sdp")
    told = enable(booted, "postgresql@15-sdp").stderr
    line = re.search("Add the line (LD_PRELOAD = '.*') to that file", told).group(1)
    booted.run("tee", "-a", "/etc/postgresql/15/sdp/environment", text_in=f"{line}\n")
    assert enable(booted, "postgresql@15-sdp").stderr == ""
    booted.run("psql", "-p", "5499", "-c", f"create role {CLIENT} login superuser password 'word'", user="postgres")
    to = ["env", "PGPASSWORD=word", "/usr/lib/postgresql/15/bin/pgbench", "-h", "127.0.0.1", "-p", "5499"]
    ask(booted, *to, "-q", "-i", "postgres")
    report = ask(booted, *to, "-n", "-S", "-c", "4", "-t", "2000", "postgres")
    assert share(report) >= 0.9, report.describe()


# What the package's script enables when it is installed.
MODULES = """mpm_event authn_core authz_core authz_host auth_basic access_compat authn_file authz_user alias dir autoindex env mime
    negotiation setenvif filter deflate status reqtimeout"""


def test_apache(fetched):
    """A master of root's; a temporary directory of its own. A connection is closed after a hundred requests."""
    fetched.shell(f"a2enmod -q {' '.join(MODULES.split())}; a2ensite -q 000-default; mkdir -p /var/log/apache2")
    fetched.write("/var/www/html/index.html", "0123456789abcdef" * 4096)
    enable(fetched, "apache2")
    check_by_sdp(fetched, "apache2", ask(fetched, "ab", "-q", "-k", "-c", "4", "-n", "400", "http://127.0.0.1/index.html"))


def test_mariadb(fetched):
    """Its unit drops capabilities, and protects system and homes."""
    fetched.shell("""
        getent passwd mysql || useradd --system --no-create-home --home-dir /nonexistent --shell /bin/false mysql
        [ -e /etc/mysql/my.cnf ] || ln -s mariadb.cnf /etc/mysql/my.cnf
        install -d -o mysql -g mysql /var/lib/mysql /run/mysqld
        mariadb-install-db --user=mysql --skip-test-db
    """)
    enable(fetched, "mariadb")
    fetched.run("mariadb", "-e", f"grant all on *.* to {CLIENT}@'%' identified by 'word'")
    slap = ["mariadb-slap", "-h", "127.0.0.1", "-u", CLIENT, "-pword", "--auto-generate-sql", "--concurrency=4"]
    slap += ["--auto-generate-sql-load-type=read", "--number-of-queries=4000"]
    check_by_sdp(fetched, "mariadb", ask(fetched, *slap))


PHP = """
upstream php { server 127.0.0.1:9000; keepalive 2; }
server {
    listen 127.0.0.1:8090;
    location / {
        fastcgi_pass php; fastcgi_keep_conn on; include fastcgi_params;
        fastcgi_param SCRIPT_FILENAME /var/www/html/page.php;
    }
}
"""


def test_php_fpm(booted):
    """A master of root's, whose pool listens on a port; behind nginx, which keeps its connections to it."""
    booted.write("/etc/nginx/conf.d/php.conf", PHP)
    page = "<?php header('Content-Length: 4096'); echo str_repeat('0123456789abcdef', 256);"
    booted.write("/var/www/html/page.php", page)
    booted.run("sed", "-i", "s/^listen = .*/listen = 127.0.0.1:9000/", "/etc/php/8.2/fpm/pool.d/www.conf")
    enable(booted, "php8.2-fpm")
    enable(booted, "nginx")
    report = ask(booted, "ab", "-q", "-k", "-c", "2", "-n", "1600", "http://127.0.0.1:8090/")
    check_by_sdp(booted, "php8.2-fpm", report)
    booted.run("rm", "/etc/nginx/conf.d/php.conf")
