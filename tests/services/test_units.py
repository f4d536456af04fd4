"""Debian's own units under a real systemd, with the settings that they ship and the drop-in of `sdp service enable`.

Clients are of other users than the servers. The counters of both ends say by which lane payload went.
"""

import json
import os
import re

import pytest

from support.report import Report

CLIENT = "games"
BENCHMARK = ("redis-benchmark", "-c", "4", "-n", "20000", "-d", "1000", "-t", "set,get", "--csv")


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
