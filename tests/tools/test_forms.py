"""What the tools print for machines: JSON as documented, counters for Prometheus, a dashboard that asks for counters
that there are."""

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

from support.procs import wait_until
from support.stage import python
from tools.schema import faults
from tools.sdp import environment, sdp
from tools.test_tools import PAIR, pair

pytestmark = pytest.mark.quick

TOP = Path(__file__).resolve().parents[2]
SCHEMAS = TOP / "docs" / "schema"
SAMPLE = re.compile(r'^([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (-?[0-9.e+]+)$')


def hold(name, form):
    """Holds a form against its document."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    assert schema["properties"]["schema"]["const"] == form["schema"] == 1
    assert not faults(form, schema)


def metrics(text):
    """Counters by name: samples of labels and value; every line is of the text format, with its help and type first."""
    found, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert kind in ("counter", "gauge", "histogram") and name not in kinds
            assert kind != "counter" or name.endswith("_total")
            kinds[name] = kind
        elif not line.startswith("# HELP"):
            name, labels, value = SAMPLE.match(line).groups()
            base = re.sub("_(bucket|sum|count)$", "", name)
            assert name in kinds or kinds.get(base) == "histogram", line
            found.setdefault(name, []).append((dict(re.findall(r'([a-z_]+)="([^"]*)"', labels)), float(value)))
    return found


def test_every_form_is_the_documented_one(ladder, tmp_path):
    """With a pair at work, so that every member is there."""
    report = tmp_path / "report.json"
    with pair(ladder, "--no-config", "--report", report) as (parent, *_):
        wait_until(lambda: "shm/buffered" in sdp(ladder, "stat", "--pid", parent).stdout, "the lane")
        hold("stat", json.loads(sdp(ladder, "stat", "--json").stdout))
        hold("top", json.loads(sdp(ladder, "top", "--json", "--interval", "0.1").stdout))
        hold("top", json.loads(sdp(ladder, "top", "--json", "--processes", "--interval", "0.1").stdout))
    hold("report", json.loads(report.read_text(encoding="utf-8")))
    rules = tmp_path / "rules.conf"
    rules.write_text("match program db2*\nuse tcp client * *:389\noption recv_poll 1\n", encoding="utf-8")
    hold("config", json.loads(sdp(ladder, "config", "show", "--json", rules).stdout))
    hold("tune", json.loads(sdp(ladder, "tune", "--json", "--config", rules).stdout))
    for address in ("10.0.0.1:389", "10.0.0.1:1"):
        hold("explain", json.loads(sdp(ladder, "explain", "--json", "--config", rules, "x", address).stdout))
    hold("doctor", json.loads(sdp(ladder, "doctor", "--json", python()).stdout))
    hold("devices", json.loads(sdp(ladder, "devices", "--json").stdout))
    listed = set(re.findall(r"\]\((\w+)\.json\)", (SCHEMAS / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.stem for path in SCHEMAS.glob("*.json")}


def test_the_last_scrape_says_what_the_report_says(ladder, tmp_path):
    """Counters of a run in a file that is there when it is whole."""
    scrape, report = tmp_path / "sdp.prom", tmp_path / "report.json"
    command = ["run", "--no-config", "--prometheus-file", scrape, "--report", report, "--", python(), PAIR]
    assert sdp(ladder, *command, stdin=subprocess.DEVNULL).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "sdp.prom"]
    said = json.loads(report.read_text(encoding="utf-8"))
    found = metrics(scrape.read_text(encoding="utf-8"))
    sums = {(labels["lane"], labels["direction"]): value for labels, value in found["sdp_bytes_total"]}
    assert sums == {tuple(key.split("_")): value for key, value in said["bytes"].items()}
    assert found["sdp_connections_seen_total"] == [({"command": python()}, 2.0)]
    assert found["sdp_run_seconds"][0][1] == said["wall_s"]
    # A folder that is not there fails before the command runs.
    done = sdp(ladder, "run", "--prometheus-file", tmp_path / "no/x.prom", "--", "touch", tmp_path / "ran")
    assert done.returncode == 125 and not (tmp_path / "ran").exists()
    # A command that cannot be started leaves nothing.
    assert sdp(ladder, "run", "--prometheus-file", tmp_path / "y.prom", "--", "no-such-command").returncode == 127
    assert not list(tmp_path.glob("y.prom*"))


STRICT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])))
except ConnectionRefusedError:
    print("refused", flush=True)
sys.stdin.readline()
"""


def test_refused_connections_are_counted_everywhere(ladder, tmp_path):
    """A strict client, and a listener without the library."""
    scrape, report = tmp_path / "sdp.prom", tmp_path / "report.json"
    listener = socket.create_server(("127.0.0.1", 0))
    command = [ladder.artifacts.sdp, "run", "--rule", "use sdp client * *:*", "--prometheus-file", scrape,
               "--report", report, "--", python(), "-c", STRICT, str(listener.getsockname()[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True) as client:
        assert client.stdout.readline() == "refused\n"
        look = json.loads(sdp(ladder, "top", "--json", "--interval", "0.1").stdout)
        hold("top", look)
        text = sdp(ladder, "top", "--once", "--interval", "0.1").stdout
        live = metrics(sdp(ladder, "stat", "--prometheus").stdout)["sdp_connections_refused_total"]
        client.communicate("\n", timeout=60)
    said = json.loads(report.read_text(encoding="utf-8"))["refused"]
    assert said == {"peer-not-listening": 1}
    assert look["refused"] >= 1 and f"{look['refused']} refused" in " ".join(text.split()), (look, text)
    (count,) = [value for labels, value in live if labels["reason"] == "peer-not-listening"]
    (last,) = metrics(scrape.read_text(encoding="utf-8"))["sdp_connections_refused_total"]
    assert count == last[1] == 1 and last[0]["reason"] == "peer-not-listening"


def test_the_dashboard_asks_for_what_there_is(ladder):
    """As Grafana loads it: panels that do not lie on each other, variables that are declared, counters that exist."""
    board = json.loads((TOP / "packaging/grafana/sdp.json").read_text(encoding="utf-8"))
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    assert board["schemaVersion"] >= 36 and len(board["uid"]) <= 40
    variables = {variable["name"] for variable in board["templating"]["list"]}
    with pair(ladder, "--no-config") as (parent, *_):
        there = metrics(sdp(ladder, "stat", "--prometheus", "--pid", parent).stdout)
        types = set(re.findall(r"# TYPE (\w+)", sdp(ladder, "stat", "--prometheus", "--pid", parent).stdout))
    labels = {name: {label for sample, _ in samples for label in sample} for name, samples in there.items()}
    taken, ids = set(), set()
    for panel in board["panels"]:
        assert {"id", "title", "type", "gridPos", "targets", "datasource", "fieldConfig", "options"} <= set(panel)
        assert panel["id"] not in ids
        ids.add(panel["id"])
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        for target in panel["targets"]:
            expression = target["expr"]
            assert expression.count("(") == expression.count(")")
            names = set(re.findall(r"\bsdp_\w+", expression))
            assert names and names <= types | set(there), expression
            used = set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval"}
            assert used <= variables, expression
            for name in names & set(labels):
                grouped = re.findall(r"by \(([^)]*)\)", expression)
                wanted = {word.strip() for group in grouped for word in group.split(",")}
                assert wanted <= labels[name], (expression, labels[name])


def test_top_prints_tables_where_there_is_no_terminal(ladder):
    """One, or as many as asked for; narrow; ended when nobody reads."""
    with pair(ladder, "--no-config") as (parent, *_):
        done = sdp(ladder, "top", "--once", "--interval", "0.1", env=environment(COLUMNS="120"))
        assert "PID" in done.stdout and "LOCAL" in done.stdout and str(parent) in done.stdout
        done = sdp(ladder, "top", "--batch", "3", "--interval", "0.1")
        assert done.stdout.count("PROGRAM") == 3
        done = sdp(ladder, "top", "--interval", "0.1", env=environment(COLUMNS="20"))
        assert max(map(len, done.stdout.splitlines())) <= 20
        only = [json.loads(line) for line in sdp(
            ladder, "top", "--json", "--batch", "2", "--interval", "0.1", "--pid", parent).stdout.splitlines()]
        assert len(only) == 2 and all({line["pid"] for line in look["lines"]} == {parent} for look in only)
    assert sdp(ladder, "top", "--interval", "0").returncode == 1
