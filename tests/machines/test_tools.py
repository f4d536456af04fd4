"""`sdp devices` and `sdp doctor` on a machine with an RDMA device, and on one without."""

import json
import time


def ask(guest, ladder, *words, ok=(0,), user=None, before=""):
    """What a command of `sdp` prints as JSON."""
    line = " ".join(map(str, (ladder.artifacts.sdp, *words, "--json")))
    return json.loads(guest.run(f"{before} {line}", ok=ok, user=user).out)


def findings(guest, ladder, check, **options):
    """What `sdp doctor` says of one check."""
    form = ask(guest, ladder, "doctor", ok=(0, 1), **options)
    return [f for f in form["findings"] if f["check"] == check]


def test_devices_with_a_device(pair, ladder):
    """Everything that the kernel tells of a soft-RoCE device."""
    form = ask(pair.a, ladder, "devices")
    (device,) = form["devices"]
    (port,) = device["ports"]
    print(json.dumps(device))
    assert device["name"] == "rxe0" and device["node_type"] == "CA"
    assert (port["port"], port["state"], port["link_layer"]) == (1, "ACTIVE", "Ethernet")
    assert port["rate"].endswith(")") and "Gb/sec" in port["rate"]
    assert port["interfaces"] == ["eth0"]
    assert device["shared_receive_queue"] is True
    gids = {gid["gid"]: gid for gid in port["gids"]}
    of_address = gids["::ffff:10.9.0.1"]
    assert of_address["kind"] == "RoCE v2" and of_address["interface"] == "eth0"
    assert any(gid.startswith("fe80::") for gid in gids) and "fd00:9::1" in gids
    text = pair.a.run([ladder.artifacts.sdp, "devices"]).text
    assert "rxe0 (CA, firmware -, board -)" in text and "::ffff:10.9.0.1" in text and "eth0" in text


def test_devices_without_a_device(bare, ladder):
    """That is said, beside the network interfaces."""
    form = ask(bare, ladder, "devices")
    assert form["devices"] == []
    assert {"lo", "dummy0"} <= {interface["name"] for interface in form["interfaces"]}
    assert "no RDMA device" in bare.run([ladder.artifacts.sdp, "devices"]).text


def test_doctor_with_a_device(pair, ladder):
    """Nothing is wrong; then each cause is provoked, and found."""
    good = {f["check"]: f for f in ask(pair.a, ladder, "doctor", ok=(0, 1))["findings"]}
    print(json.dumps(good))
    assert "rxe0" in good["rdma"]["what"]
    assert good["verbs"]["grade"] == "ok" and "RoCE v2" in good["gid"]["what"]
    assert good["rdma-mtu"]["grade"] == "ok"
    assert good["srq"]["grade"] == "ok" and "rxe0 has shared receive queues" in good["srq"]["what"]
    (locked,) = findings(pair.a, ladder, "memlock", before="ulimit -l 64;")
    assert "64 KiB" in locked["what"]
    pair.a.run("chmod 600 /dev/infiniband/uverbs0")
    try:
        refused = findings(pair.a, ladder, "rdma", user="nobody")
        assert any("uverbs0" in f["what"] for f in refused), refused
    finally:
        pair.a.run("chmod 666 /dev/infiniband/uverbs0")
    pair.a.run("ip link set eth0 mtu 1500; sleep 0.2")
    try:
        small = findings(pair.a, ladder, "rdma-mtu")
        assert any(f["grade"] == "note" and "1500" in f["what"] for f in small), small
    finally:
        pair.a.run("ip link set eth0 mtu 4200")


def test_doctor_without_a_device(bare, ladder):
    """One note, and nothing else about RDMA."""
    (found,) = findings(bare, ladder, "rdma")
    assert found["grade"] == "note" and "no RDMA device" in found["what"]
    assert not findings(bare, ladder, "verbs") and not findings(bare, ladder, "gid")


def test_a_ping_by_rdma(pair, ladder):
    """Answered while somebody answers; what is missing is named else."""
    sdp = ladder.artifacts.sdp
    nobody = ask(pair.b, ladder, "doctor", "--peer", "10.9.0.1", ok=(1,))
    (silent,) = [f for f in nobody["findings"] if f["check"] == "ping"]
    assert silent["grade"] == "stop" and "sdp doctor --answer 10.9.0.1" in silent["advice"], silent
    answers = pair.a.start(f"timeout -s INT 60 {sdp} doctor --answer 10.9.0.1")
    for _ in range(50):
        form = ask(pair.b, ladder, "doctor", "--peer", "10.9.0.1", ok=(0, 1))
        (ping,) = [f for f in form["findings"] if f["check"] == "ping"]
        if ping["grade"] == "ok":
            break
        time.sleep(0.2)
    print(json.dumps(ping))
    assert "rxe0 reaches 10.9.0.1 by RDMA" in ping["what"], ping
    pair.a.run(f"pkill -INT -f '^{sdp} doctor --answer'")
    answers.wait(60)


def test_perf_between_machines(pair, ladder):
    """One command at each machine; queue pairs carry what the library's pair sends. No figure is judged."""
    sdp = ladder.artifacts.sdp
    serves = pair.a.start(f"exec timeout -s INT 200 {sdp} perf serve 10.9.0.1")
    pair.a.wait_listening(7798)
    done = pair.b.run([sdp, "perf", "between", "10.9.0.1", "--rounds", "3", "--seconds", "3", "--json"], 120)
    outcomes = json.loads(done.out)
    print(done.text)
    assert [outcome["unit"] for outcome in outcomes] == ["us", "GB/s", "Mmsg/s"], outcomes
    for outcome in outcomes:
        assert outcome["ends"]["fabric"] == "verbs" and outcome["sdp_share"] > 0, outcome
        for end in ("here", "there"):
            assert outcome["ends"][end]["verbs"] == 1 and outcome["ends"][end]["shm"] == 0, outcome
    pair.a.run(f"pkill -INT -f '^{sdp} perf serve'")
    serves.wait(60)
