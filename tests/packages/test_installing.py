"""`tests/install-packages` changes nothing of a machine but its packages: with an apt-get that notes what it is asked for and does
what packages of servers do."""

import shlex
from pathlib import Path

import pytest

from .root import TOP, Root

POLICY, CLUSTER = "/usr/sbin/policy-rc.d", "/etc/postgresql-common/createcluster.conf"
WANTS = "/etc/systemd/system/multi-user.target.wants"
APT = f"""#!/bin/sh
echo "$*" >>/asked
case " $* " in *" install "*) ;; *) exit 0 ;; esac
{POLICY} server start
echo "answer $?" >>/asked
mkdir -p {WANTS} /etc/rc2.d
ln -s /lib/systemd/system/server.service {WANTS}/server.service
printf '#!/bin/sh\\n### BEGIN INIT INFO\\n# Provides: server\\n# Required-Start:\\n# Required-Stop:\\n%s\\n### END INIT INFO\\n' \\
    '# Default-Start: 2 3 4 5
# Default-Stop: 0 1 6' >/etc/init.d/server
chmod 755 /etc/init.d/server
update-rc.d server defaults
exit ${{APT_FAILS:-0}}
"""


@pytest.fixture(name="root")
def _root(tmp_path):
    root = Root(tmp_path)
    try:
        root.path("/asked").write_text("", encoding="utf-8")
        for name, text in (("/opt/apt-get", APT), ("/opt/install", (TOP / "tests/install-packages").read_text(encoding="utf-8"))):
            root.path(name).write_text(text, encoding="utf-8")
            root.path(name).chmod(0o755)
        root.path("/usr/bin/stress-ng").unlink()
        yield root
    finally:
        root.close()


def install(root, *arguments, **env):
    """Runs it with that apt-get; what this was asked for."""
    path = {"PATH": "/opt:/usr/sbin:/usr/bin:/sbin:/bin", **env}
    done = root.run("/bin/bash", "/opt/install", *arguments, env=path, check=False)
    return done, root.path("/asked").read_text(encoding="utf-8").splitlines()


def links(root):
    """What begins at boot."""
    command = f"ls -d {WANTS}/* /etc/rc?.d/S* 2>/dev/null"
    return set(root.run("/bin/sh", "-c", command, check=False).stdout.split())


@pytest.mark.parametrize("fails", ["0", "100"])
@pytest.mark.parametrize("policy", [None, "#!/bin/sh\nexit 104\n"])
def test_nothing_is_started_or_enabled(root, policy, fails):
    """While packages are installed no service may start; afterwards nothing is enabled that was not, and policies are as before,
    whether or not the packages could be installed."""
    if policy:
        root.path(POLICY).write_text(policy, encoding="utf-8")
        root.path(POLICY).chmod(0o755)
    else:
        root.path(POLICY).unlink(missing_ok=True)
    root.path(CLUSTER).unlink(missing_ok=True)
    before = links(root)
    done, asked = install(root, "stress-ng", "gcc", APT_FAILS=fails)
    assert done.returncode == int(fails), done.stderr
    assert [shlex.split(line)[-1] for line in asked] == ["update", "stress-ng", "101"], asked
    assert "--no-upgrade" in asked[1], asked
    assert links(root) == before, done.stderr
    kept = root.path(POLICY)
    assert (kept.read_text(encoding="utf-8") if kept.exists() else None) == policy
    assert not Path(f"{kept}.saved-by-ladder").exists()
    cluster = root.path(CLUSTER)
    assert not cluster.exists() or "ladder" not in cluster.read_text(encoding="utf-8")


def test_a_dry_run_names_what_is_missing(root):
    """It installs nothing and changes nothing."""
    before = root.written()
    done, asked = install(root, "--dry-run")
    assert done.returncode == 0 and " stress-ng" in done.stdout, done.stdout
    assert not asked and root.written() == before


def test_the_gate_needs_no_more_than_the_whole_ladder(root):
    """What only the whole ladder needs is not installed for the gate."""
    missing = [install(root, extent, "--dry-run")[0].stdout for extent in ("--gate", "--whole")]
    assert " stress-ng" in missing[1] and "stress-ng" not in missing[0], missing
