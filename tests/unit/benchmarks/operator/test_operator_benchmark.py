"""The operator's benchmark: its floors, its fake pods, and how it tells that an edit was undone."""

from __future__ import annotations

import socket
import threading
import urllib.request
from pathlib import Path

import msgspec
import pytest

from benchmarks.operator import fake_node, fleet, process, repair, rolling_restart
from benchmarks.operator.__main__ import fleet_figures, repair_figures, restart_figures
from benchmarks.operator.api import path_of
from vespiary_operator import kinds, pods

GOOD = fleet.Fleet(
    brokers=500,
    children_s=50,
    ready_s=60,
    start_s=20,
    start_cpu_s=10,
    start_writes=0,
    create_cpu_s=40,
    idle_cores=0.1,
    idle_writes=0,
    pass_ms=9,
    rss_bytes=150 << 20,
    rss_peak_bytes=200 << 20,
)


def test_figures_are_held_against_the_floors() -> None:
    assert not [f.name for f in fleet_figures(GOOD) if f.verdict == "MISSED"]
    bad = msgspec.structs.replace(
        GOOD, rss_peak_bytes=300 << 20, start_s=61, idle_writes=1, start_writes=1, pass_ms=51
    )
    assert len([f for f in fleet_figures(bad) if f.verdict == "MISSED"]) == 5
    late = repair_figures(repair.Repairs(edit_s=[0.2, 6, 7], delete_s=[0.1]))
    assert [f.verdict for f in late] == ["MISSED", "kept"]


def test_one_confirmed_message_that_is_lost_is_a_miss() -> None:
    found = rolling_restart.Restarted(seconds=40, away_s=[3, 4, 5], confirmed=9000, lost=0)
    assert not [f.name for f in restart_figures(found) if f.verdict == "MISSED"]
    lost = restart_figures(msgspec.structs.replace(found, lost=1))
    assert [f.name for f in lost if f.verdict == "MISSED"] == ["confirmed messages lost"]


def test_a_clients_longest_wait_is_between_two_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    client = rolling_restart.Client("ns", "rolling-0", "secret")
    times = iter([10.0, 10.5, 14.0, 14.1])
    monkeypatch.setattr(rolling_restart.time, "monotonic", lambda: next(times))
    for number in range(1, 5):
        client.confirm(number)
    assert client.away_s == 3.5
    assert client.confirmed == {1, 2, 3, 4}


def test_a_fake_pod_is_one_that_the_operator_takes_for_a_serving_broker() -> None:
    spec = {
        "initContainers": [{"name": "verify", "image": "i"}],
        "containers": [{"name": "broker", "image": "i"}],
    }
    pod = {"metadata": {"name": "fleet-0000-0"}, "spec": spec}
    pod["status"] = fake_node.ready_status(pod)
    assert pods.is_ready(pod)
    answer = pods.verified(pod)
    assert answer is not None
    assert [volume.name for volume in answer.volumes] == list(fake_node.VOLUMES)
    assert answer.refusal == ""


def test_a_fake_broker_holds_no_answer_back() -> None:
    seen = []

    class Answers(fake_node._Answers):
        def do_GET(self) -> None:
            seen.append(self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            super().do_GET()

    server = fake_node._Server(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/") as page:
            assert page.status == 200
    finally:
        server.shutdown()
        server.server_close()
    assert seen == [1]


def test_ready_counts_for_the_present_generation_alone() -> None:
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"observedGeneration": 1, "conditions": conditions}
    assert fleet.is_ready({"metadata": {"generation": 1}, "status": status})
    assert not fleet.is_ready({"metadata": {"generation": 2}, "status": status})
    assert not fleet.is_ready({"metadata": {"generation": 1}})


def test_an_edit_is_undone_when_its_part_of_the_object_is_as_before() -> None:
    edit = {"spec": {"selector": {"edited": "by-hand"}}}
    before = {"spec": {"selector": {"app": "x"}, "ports": [1]}}
    after = {"spec": {"selector": {"app": "x", "edited": "by-hand"}, "ports": [1]}}
    wanted = repair.values_at(before, edit)
    assert wanted == {"spec": {"selector": {"edited": None}}}
    assert repair.values_at(after, edit) != wanted
    assert repair.values_at(None, edit) == wanted


def test_paths_are_those_of_the_api_server() -> None:
    assert path_of(kinds.POD) == "/api/v1/pods"
    assert path_of(kinds.POD, "ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert path_of(kinds.STATEFUL_SET, "ns") == "/apis/apps/v1/namespaces/ns/statefulsets"


@pytest.mark.ci
def test_an_operator_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(process.OperatorError, match="VESPIARY_LOG_LEVEL"),
        process.running(tmp_path, broker_image="i", LOG_LEVEL="loud"),
    ):
        raise AssertionError("it has to end: there is no such log level")
