"""Links as a calibration corrects them, and calibrations that are refused."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from llmsim.config import Deployment, EngineOverrides, load_cluster, resolve
from llmsim.config.errors import InputError
from llmsim.lowering.adjust.calibration import Calibration, engine_with, link_with

CLUSTERS = Path(__file__).resolve().parents[3] / "cluster_config"
BANDWIDTH, LATENCY_PS = 7 * 10**9, 123_000


def deployment(name: str) -> Deployment:
    return resolve(load_cluster(CLUSTERS / name), EngineOverrides())


def test_only_links_inside_a_group_are_corrected() -> None:
    plain = deployment("h100_llama31_8b_pd.json")
    link = replace(plain.link, bandwidth_bytes_per_s=(10, 20, 30), latency_ps=(1, 2, 3))
    plain = replace(plain, link=link)
    assert link_with(plain, None) == link == link_with(plain, Calibration("H100", "c.json"))
    faster = link_with(plain, Calibration("H100", "c.json", link_bandwidth_bytes_per_s=BANDWIDTH))
    assert (faster.bandwidth_bytes_per_s, faster.latency_ps) == ((BANDWIDTH, 20, 30), (1, 2, 3))
    nearer = link_with(plain, Calibration("H100", "c.json", link_latency_ps=0))
    assert (nearer.bandwidth_bytes_per_s, nearer.latency_ps) == ((10, 20, 30), (0, 2, 3))


def test_of_other_hardware_it_is_refused() -> None:
    with pytest.raises(
        InputError, match=r'c\.json: it calibrates "A100", but the cluster has H100'
    ):
        link_with(deployment("h100_llama31_8b.json"), Calibration("A100", "c.json"))


@pytest.mark.parametrize(
    "constants", [{"link_bandwidth_bytes_per_s": BANDWIDTH}, {"link_latency_ps": LATENCY_PS}]
)
def test_links_of_a_topology_are_corrected_there(constants: dict[str, int]) -> None:
    placed = deployment("l40s_llama31_8b_tp4_pcie.json")
    assert placed.topology is not None
    with pytest.raises(
        InputError, match="it calibrates links, but the cluster's are those of the topology"
    ):
        link_with(placed, Calibration("L40S", "c.json", **constants))  # type: ignore[arg-type]
    assert (
        link_with(placed, Calibration("L40S", "c.json", time_factor_ppm=2_000_000)) == placed.link
    )


def test_a_host_gap_says_where_it_came_from() -> None:
    engine = deployment("h100_llama31_8b.json").groups[0].engine
    assert engine_with(engine, Calibration("H100", "c.json")) is engine
    gap = engine_with(engine, Calibration("H100", "c.json", host_gap_ps=5))
    assert gap.host_gap_ps == 5 and gap.origin["host_gap_ps"] == "calibration c.json"
