"""`sdp service`: drop-ins for units of systemd, and the settings that stop or slow lanes; Debian's own units among them."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.procs import wait_until
from tools.sdp import sdp
from tools.test_tools import pair

pytestmark = pytest.mark.quick

LIMIT_S = 60
NUMBERS_PROCESSES = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 9)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes control groups")
UNIT = "usr/lib/systemd/system/x.service"
DROP_IN = "etc/systemd/system/x.service.d/50-sdp.conf"


@pytest.fixture(name="image")
def _image(tmp_path):
    """The files of an image, with a unit of these lines."""
    def write(*lines, name=UNIT):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Unit]\nDescription=x\n[Service]\n" + "".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    write.root = tmp_path
    return write


def service(ladder, image, command, *arguments, unit="x"):
    """Runs a sub-command on the image's unit."""
    return sdp(ladder, "service", command, "--sysroot", image.root, *arguments, unit)


def findings(ladder, image):
    """What is found, by its check; the exit status goes by the worst."""
    done = service(ladder, image, "check", "--json")
    form = json.loads(done.stdout)
    assert done.returncode == (0 if form["ok"] else 1), done
    return {f["check"]: f for f in form["findings"]}


def test_a_drop_in_comes_and_goes(ladder, image):
    """The unit's own preloads stay, sockets of AF_UNIX are allowed; printed first, then written, then removed."""
    image("ExecStart=/bin/true", "Environment=LD_PRELOAD=/usr/lib/jemalloc.so", "RestrictAddressFamilies=AF_INET")
    before = sorted(image.root.rglob("*"))
    printed = service(ladder, image, "enable", "--print", "--set", "recv_poll=0")
    assert printed.returncode == 0 and sorted(image.root.rglob("*")) == before
    done = service(ladder, image, "enable", "--set", "recv_poll=0")
    assert done.returncode == 0 and "systemctl daemon-reload && systemctl restart x.service" in done.stdout
    text = (image.root / DROP_IN).read_text(encoding="utf-8")
    assert printed.stdout == f"# {image.root / DROP_IN}\n{text}"
    lines = text.splitlines()
    assert "Environment=LD_PRELOAD=libsdp.so.1:/usr/lib/jemalloc.so" in lines and "Environment=SDP_RECV_POLL=0" in lines
    assert "RestrictAddressFamilies=AF_UNIX" in lines
    # Again it is the same: it is not read as a part of the unit.
    assert service(ladder, image, "enable", "--set", "recv_poll=0").returncode == 0
    assert (image.root / DROP_IN).read_text(encoding="utf-8") == text
    assert service(ladder, image, "disable").returncode == 0
    assert not (image.root / DROP_IN).parent.exists()
    assert service(ladder, image, "disable").returncode == 1
    assert service(ladder, image, "enable", "--set", "nothing=1").returncode == 1
    assert not (image.root / DROP_IN).exists()


def test_a_drop_in_of_somebody_else_stays(ladder, image):
    """One of that name that we have not written."""
    image("ExecStart=/bin/true")
    other = image("Nice=1", name=DROP_IN)
    done = service(ladder, image, "disable")
    assert done.returncode == 1 and "was not written by" in done.stderr and other.exists()


@pytest.mark.parametrize("setting, check, grade", [
    ("PrivateUsers=yes", "users", "note" if NUMBERS_PROCESSES else "stop"),
    ("RestrictAddressFamilies=AF_INET AF_INET6", "families", "stop"),
    ("PrivateNetwork=true", "network", "note"),
    ("SystemCallFilter=@system-service", "calls", "note"),
    ("SystemCallFilter=~memfd_create", "calls", "stop"),
    ("LimitNOFILE=256:4096", "descriptors", "slow"),
    ("LimitFSIZE=64K", "file-size", "stop"),
    ("StandardInput=socket", "input", "stop"),
    ("UnsetEnvironment=LD_PRELOAD", "preload", "stop"),
    ("RootDirectory=/srv/x", "root", "slow"),
])
def test_a_setting_that_stops_or_slows(ladder, image, setting, check, grade):
    """It is found where it is set, in a later drop-in it can be taken back, and without it nothing is found."""
    image("ExecStart=/bin/true")
    assert set(findings(ladder, image)) == {"unit"}
    image("ExecStart=/bin/true", setting)
    found = findings(ladder, image)[check]
    assert found["grade"] == grade and (found["advice"] or grade == "note")
    name = setting.split("=", 1)[0]
    image(f"{name}={'no' if name.startswith('Private') else ''}", name="etc/systemd/system/x.service.d/override.conf")
    assert set(findings(ladder, image)) == {"unit"}


def test_programs_that_cannot_have_it(ladder, image):
    """A static one; one of glibc can."""
    image("ExecStart=-/bin/static --now")
    target = image.root / "bin/static"
    target.parent.mkdir()
    shutil.copy(shutil.which("busybox"), target)
    assert findings(ladder, image)["program"]["grade"] == "stop"
    shutil.copy("/bin/true", target)
    assert "program" not in findings(ladder, image)


def test_the_variables_of_a_cluster(ladder, image):
    """Debian's script starts PostgreSQL with those of one file alone; the unit that stands for all clusters starts nothing."""
    image("ExecStart=-/usr/bin/pg_ctlcluster --skip-systemctl-redirect %i start", name="usr/lib/systemd/system/postgresql@.service")
    check = lambda: json.loads(service(ladder, image, "check", "--json", unit="postgresql@15-main").stdout)
    (found,) = [f for f in check()["findings"] if f["check"] == "preload"]
    assert found["grade"] == "stop" and f"{image.root}/etc/postgresql/15/main/environment" in found["what"]
    line = re.search("LD_PRELOAD = '.*'", found["advice"]).group(0)
    file = image.root / "etc/postgresql/15/main/environment"
    file.parent.mkdir(parents=True)
    file.write_text(f"{line}\n", encoding="utf-8")
    assert check()["ok"]
    image("Type=oneshot", "ExecStart=/bin/true", "RemainAfterExit=on")
    assert "postgresql@VERSION-CLUSTER" in findings(ladder, image)["program"]["advice"]


def test_units_are_found_as_systemd_finds_them(ladder, image):
    """Instances of templates, the administrator's before the package's, masks; names that are none."""
    image("RestrictAddressFamilies=AF_INET", name="usr/lib/systemd/system/db@.service")
    done = service(ladder, image, "check", "--json", unit="db@15-main")
    assert "RestrictAddressFamilies=" in done.stdout and done.returncode == 1
    image("Nice=1", name="etc/systemd/system/db@.service")
    assert service(ladder, image, "check", unit="db@15-main").returncode == 0
    (image.root / "etc/systemd/system/x.service").symlink_to("/dev/null")
    assert "masked" in service(ladder, image, "check").stderr
    for bad in ("none", "../x", "x.socket"):
        done = service(ladder, image, "check", unit=bad)
        assert done.returncode == 1 and not done.stdout, bad


@pytest.mark.parametrize("unit, checks", [
    ("redis-server", {"users", "calls"}), ("memcached", set()), ("nginx", set()), ("haproxy", set()),
])
def test_units_of_debian(ladder, image, unit, checks):
    """With the settings that they ship: a drop-in that systemd takes, and the setting that keeps other users' clients on TCP."""
    ours = Path(f"/usr/lib/systemd/system/{unit}.service")
    found = json.loads(sdp(ladder, "service", "check", "--json", unit).stdout)["findings"]
    assert {f["check"] for f in found if f["grade"] != "ok"} == checks
    place = image.root / ours.relative_to("/")
    place.parent.mkdir(parents=True)
    shutil.copy(ours, place)
    assert service(ladder, image, "enable", unit=unit).returncode == 0
    drop_in = image.root / f"etc/systemd/system/{unit}.service.d/50-sdp.conf"
    with tempfile.TemporaryDirectory(prefix="sdp-unit-") as folder:
        copy = Path(folder) / f"{unit}.service"
        copy.write_text(place.read_text(encoding="utf-8") + drop_in.read_text(encoding="utf-8"), encoding="utf-8")
        done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    said = [line for line in done.stderr.splitlines() if f"{unit}.service" in line and "Command" not in line and "man" not in line]
    assert not [line for line in said if "Unknown" in line or "Failed to parse" in line or "nvalid" in line], done.stderr


@as_root
def test_the_status_of_a_units_processes(ladder, tmp_path):
    """Those of its control group: their share and reasons, and what other ends say."""
    name = f"sdp-test-{os.getpid()}.service"
    done = sdp(ladder, "service", "status", name)
    assert done.returncode == 1 and f"sdp service enable {name}" in done.stderr
    subprocess.run(["mount", "-t", "cgroup2", "none", tmp_path], check=True)
    group = tmp_path / name
    try:
        group.mkdir()
        with pair(ladder, "--no-config") as (parent, child, _, _):
            (group / "cgroup.procs").write_text(str(parent), encoding="utf-8")
            text = wait_until(
                lambda: "1 on SDP" in (said := sdp(ladder, "service", "status", name).stdout) and said, "the lane")
            assert text.startswith(f"{name}: 1 processes with the library; 1 connections seen, 1 on SDP")
            assert " % of " in text and str(child) not in text
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(encoding="utf-8"), "the end of its processes")
        group.rmdir()
        subprocess.run(["umount", tmp_path], check=True)


def test_nobody_else_writes_units(ladder, image):
    """A folder that cannot be written is a failure with its name."""
    image("ExecStart=/bin/true")
    (image.root / "etc").write_text("", encoding="utf-8")
    done = service(ladder, image, "enable")
    assert done.returncode == 1 and "50-sdp.conf" in done.stderr and "os error" not in done.stderr


def test_the_container_file_is_sound(ladder):
    """Instructions that builders know, commands that a shell takes, and the library's name as packages install it."""
    top = Path(__file__).resolve().parents[2]
    text = (top / "packaging/Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = [line.split(" ", 1) for line in lines]
    assert [word for word, _ in words] == ["ARG", "FROM", "COPY", "RUN", "ENV"]
    told = dict(words)
    assert told["FROM"] == "${BASE}" and told["ARG"].startswith("BASE=")
    subprocess.run(["sh", "-n", "-c", told["RUN"]], check=True)
    # What is copied is what is installed and removed.
    pattern, place = told["COPY"].split()
    assert told["RUN"].count(f"{place}{pattern}") == 2
    # The loader finds it by its bare name, and takes it.
    soname = told["ENV"].removeprefix("LD_PRELOAD=")
    said = subprocess.run(["readelf", "-d", ladder.artifacts.dir / "libsdp.so"], capture_output=True, text=True, check=True)
    assert f"soname: [{soname}]" in said.stdout
