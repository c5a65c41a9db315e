"""Runs state what nine in ten real servers have where published systems are like theirs alone."""

from typing import Any

import pytest

import llmsim
from llmsim.results.error_bars import learnt

pytest.importorskip("aiconfigurator_core")
LOAD = "synthetic:n=8,rate=4,input=fixed:256,output=fixed:16"
MODEL = "meta-llama/Llama-3.1-8B"


def summary(device: str = "H100", cluster: dict[str, Any] | None = None, **options: Any) -> Any:
    built = llmsim.Cluster.build(MODEL, device, **(cluster or {}))
    return llmsim.run(built, LOAD, **options).summary


@pytest.mark.parametrize("cluster", [{}, {"tp": 2}, {"prefill": 1, "decode": 1}])
def test_deployments_like_published_ones_have_an_interval(cluster: dict[str, Any]) -> None:
    found = summary(cluster=cluster)
    assert found["system_error"]["level"] == 0.9
    assert "without_system_error" not in found


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        ({"pp": 2}, {}, "no published system has pipeline stages"),
        ({"attention": 1, "ffn": 1}, {}, "no published system has attention and FFN apart"),
        ({}, {"disable_term": ["host_gap"]}, "no published system has the removed term host_gap"),
        ({}, {"scheduler": "orca"}, "no published system has the scheduler orca"),
    ],
)
def test_features_that_no_published_system_has_are_named(
    cluster: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    found = summary(cluster=cluster, **options)
    assert "system_error" not in found
    assert found["without_system_error"].startswith(said)


def test_another_devices_tables_give_no_interval() -> None:
    found = summary("A100-40GB-PCIe")
    assert "system_error" not in found
    assert found["without_system_error"].startswith("0.0 % of the times are measured on")


def test_a_roofline_gives_no_interval_and_promises_none() -> None:
    found = summary(cost_source="roofline")
    assert not {"system_error", "without_system_error"} & found.keys()


def test_no_server_is_faster_than_its_requests_arrive() -> None:
    """99 gaps of the 100 arrivals take at least as long on a real server, however fast it is."""
    load = "synthetic:n=100,rate=4,arrivals=fixed,input=fixed:256,output=fixed:64"
    bars = llmsim.run(llmsim.Cluster.build(MODEL, "H100"), load).summary
    throughput = bars["system_error"]["output_throughput"]
    assert throughput["high"] == pytest.approx(100 * 64 * 4 / 99)
    assert throughput["low"] < bars["output_throughput"] < throughput["high"]


def test_requests_that_arrive_faster_than_they_are_served_do_not_bound_a_server() -> None:
    load = "synthetic:n=100,rate=1000,arrivals=fixed,input=fixed:256,output=fixed:64"
    bars = llmsim.run(llmsim.Cluster.build(MODEL, "H100"), load).summary
    throughput, kind = bars["system_error"]["output_throughput"], bars["system_error"]["kind"]
    edge = learnt()["figures"]["output_throughput"]["kinds"][kind]["high"]
    assert throughput["high"] == pytest.approx(bars["output_throughput"] * edge, abs=1e-3)
