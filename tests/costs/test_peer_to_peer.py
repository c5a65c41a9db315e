"""`peer_to_peer` of an instance chooses among machines that collectives were measured on."""

import pytest
from builders import needs_database, request
from msgspec.structs import replace

from llmsim.core import Provenance
from llmsim.costs.catalog import look
from llmsim.costs.collectives import collective_pricer
from llmsim.costs.source import Curve, EngineVersions
from llmsim.model import Collective

pytestmark = needs_database


def reduced(hardware: str, tp: int, peer_to_peer: bool | None) -> Curve | None:
    """What an all-reduce of vLLM 0.24 takes."""
    asked = request(
        hardware=hardware, tp=tp, peer_to_peer=peer_to_peer, engine=EngineVersions(vllm="0.24")
    )
    reduction = next(
        op for op in asked.operators if isinstance(op, Collective) and op.collective == "all_reduce"
    )
    return collective_pricer(asked, look(asked))(reduction)


def test_two_cards_on_pcie_with_and_without_access() -> None:
    """Two RTX PRO 6000 reduce at 39 GB/s in tables of vLLM 0.24, at 15 GB/s in those of 0.19."""
    default = reduced("RTXPRO6000", 2, None)
    peers, host = reduced("RTXPRO6000", 2, True), reduced("RTXPRO6000", 2, False)
    assert default is not None and peers is not None and host is not None
    assert list(peers.ps) == list(default.ps)
    assert peers.source.endswith(", peer to peer") and "vllm 0.24.0" in peers.source
    assert host.source.endswith(", through host memory") and "vllm 0.19.0" in host.source
    assert 2 < host.ps[-1] / peers.ps[-1] < 3


def test_the_same_kernel_of_another_engine_stands_in() -> None:
    """vLLM's rows of four L40S went through the host; SGLang 0.5.12 was measured with access."""
    default, peers = reduced("L40S", 4, None), reduced("L40S", 4, True)
    assert default is not None and peers is not None
    assert default.source.endswith(", through host memory")
    assert "sglang 0.5.12" in peers.source and peers.source.endswith(", peer to peer")
    assert default.ps[-1] > 5 * peers.ps[-1]


@pytest.mark.parametrize(("hardware", "tp"), [("RTXPRO6000", 4), ("H100", 8)])
def test_links_price_what_was_never_measured(hardware: str, tp: int) -> None:
    assert reduced(hardware, tp, False) is None
    measured, default = reduced(hardware, tp, True), reduced(hardware, tp, None)
    assert measured is not None and default is not None
    assert list(measured.ps) == list(default.ps)


def test_nvlink_is_no_question() -> None:
    curve = reduced("H100", 8, None)
    assert curve is not None and "peer" not in curve.source


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_nccl_through_the_hosts_memory_is_slower_than_between_peers(name: str) -> None:
    """No table has NCCL without access; the all-reduces of both machines say what it would take."""
    asked = {
        peers: request(
            hardware="RTXPRO6000", tp=2, peer_to_peer=peers, engine=EngineVersions(vllm="0.24")
        )
        for peers in (True, False)
    }
    op = next(one for one in asked[True].operators if isinstance(one, Collective))
    gather = replace(op, collective=name)
    peers, host = (collective_pricer(one, look(one))(gather) for one in asked.values())
    assert peers is not None and host is not None
    assert (host.ps[1:] >= peers.ps[1:]).all() and 2 < host.ps[-1] / peers.ps[-1] < 3
    assert host.source.endswith(", through host memory")
    assert set(host.provenance) == {Provenance.SCALED}
