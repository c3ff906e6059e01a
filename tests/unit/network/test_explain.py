"""The choice of the network for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.network.test_choice import FAST, SLOW, card, host
from toolkit.core.facts import RdmaPort
from toolkit.network.choose import Evidence
from toolkit.network.explain import explain
from toolkit.network.show import explanation_text

HOSTS = """\
cluster: demo
image: toolkit:cpu
env: {NCCL_IB_HCA: mlx5_9}
hosts:
  gpu1: {address: 10.0.0.1}
  gpu2: {address: 10.0.0.2}
  gpu3: {address: gpu3.example.com}
"""
IB = RdmaPort("mlx5_0", 1, "mlx5_core", "ACTIVE", "InfiniBand", 200.0, ("ib0",))


def test_an_explanation_names_every_address_way_port_and_setting_with_its_reason() -> None:
    facts = {
        name: replace(
            host(name, card("eno1", SLOW, n), card("ib0", FAST, n, 0, kind="infiniband")),
            rdma=(IB, replace(IB, device="mlx5_1", state="DOWN", interfaces=())),
        )
        for n, name in ((1, "gpu1"), (2, "gpu2"))
    }
    evidence = Evidence(
        {("gpu1", "10.9.0.2", 45000): "refused", ("gpu2", "10.9.0.1", 45000): "refused"},
        {("gpu2", "10.0.0.1"): "ib0"},
    )
    said = explain(world.inventory(HOSTS), facts, evidence, {"gpu3": "no answer: off or cut off"})
    check_golden("network/explain.txt", explanation_text(said))
    value = json.loads(json.dumps(asdict(said)))
    one, two, three = value["hosts"]
    assert (one["address"], one["interface"], value["fabric"]) == ("10.9.0.1", "ib0", "infiniband")
    assert [a["taken"] for a in one["addresses"]] == [False, False, False, True]
    assert all(a["why"] for a in one["addresses"]) and two["ways"][0]["answer"] == "refused"
    assert [(p["name"], p["used"]) for p in one["rdma"]] == [("mlx5_0:1", True), ("mlx5_1:1", False)]
    by_name = {s["name"]: s for s in one["settings"]}
    assert (by_name["NCCL_IB_HCA"]["value"], by_name["NCCL_IB_HCA"]["file"]) == ("mlx5_9", True)
    assert (three["address"], three["why"]) == ("", "no answer: off or cut off")
