"""KV in host memory of instances on several nodes: each rank's share is on its own node."""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.config.errors import InfeasibleError, InputError, NotYetError
from tests.lowering.clusters import lowered, model
from tests.lowering.network.test_nodes_of_instances import over_nodes

LAYERS = 5
RANK_TOKEN_BYTES = 4 * 2 * 64 * 2 * LAYERS
"""Of a rank that has four of 16 heads of 64 numbers of two bytes, of keys and values."""
TOKEN_BYTES = 4 * RANK_TOKEN_BYTES
LOADED = 768
"""Tokens of three chunks of 256: the fourth has the last token of the prompt, which is computed."""
LINK_PS = 2_000_000
SLOW = 0.1
"""GB/s of a host memory that is slower than all links."""
GIB = 1 << 30


def instance(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Four ranks, whose devices hold the KV of one prompt."""
    path = model(tmp_path, heads=16, kv_heads=16, layers=LAYERS)
    return {"path": path, "tp_size": 4, "num_gpu_blocks_override": 66, **more}


def with_memory(
    document: dict[str, Any], bandwidth: list[float], size: list[float] | None = None
) -> dict[str, Any]:
    """A host memory on each node: GB/s and GB."""
    sizes = [64.0] * len(bandwidth) if size is None else size
    for node, rate, capacity in zip(document["nodes"], bandwidth, sizes, strict=True):
        node["cpu_mem"] = {"mem_size": capacity, "mem_bw": rate, "mem_latency": 0}
    return document


def two_nodes(tmp_path: Path, bandwidth: list[float], **more: Any) -> dict[str, Any]:
    document = over_nodes(nnodes=2, **instance(tmp_path, **more))
    document["nodes"] = [dict(node) for node in document["nodes"]]
    return with_memory(document, bandwidth)


def one_node(tmp_path: Path, bandwidth: float, **more: Any) -> dict[str, Any]:
    return with_memory(over_nodes(nnodes=1, **instance(tmp_path, **more)), [bandwidth])


def twice(tmp_path: Path, times: int = 1) -> str:
    """A prompt, another one that takes its blocks, and the first one again, `times` at once."""
    lines = [
        {"timestamp": 10_000 * turn, "input_length": 1024, "output_length": 2,
         "hash_ids": [4 * turn % 8 + 2 * one, 4 * turn % 8 + 2 * one + 1]}
        for turn in range(3)
        for one in range(times)
    ]  # fmt: skip
    path = tmp_path / f"twice-{times}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def run(document: dict[str, Any], trace: str, **options: Any) -> Any:
    result = llmsim.run(
        document, trace, launch_ns=0, cost_source="roofline", request_routing_policy="RR",
        check_every_step=True, engine_profile="vllm-0.33", **options,
    )  # fmt: skip
    assert set(result.summary["invariants"].values()) == {"ok"}
    return result


def waited_ps(result: Any) -> list[int]:
    """For KV, by request."""
    return [int(one) for one in result.requests["kv_transfer_ps"]]


def moved_ps(node_tokens_bytes: int, gb_per_s: float) -> int:
    """That a memory takes for the shares of the ranks on its node."""
    return round(node_tokens_bytes / gb_per_s * 1000)


@pytest.mark.parametrize("bandwidth", [[SLOW, SLOW], [SLOW, SLOW / 2], [SLOW / 4, SLOW]])
def test_a_recall_takes_the_slowest_nodes_shares_over_its_memory(
    tmp_path: Path, bandwidth: list[float]
) -> None:
    result = run(two_nodes(tmp_path, bandwidth), twice(tmp_path), prefix_storage="CPU")
    (pool,) = result.summary["kv_tiers"]
    assert pool["recalled_bytes"] == LOADED * TOKEN_BYTES
    by_hand = LINK_PS + moved_ps(LOADED * 2 * RANK_TOKEN_BYTES, min(bandwidth))
    assert waited_ps(result) == [0, 0, pytest.approx(by_hand, rel=1e-9)]


def test_stages_recall_the_kv_of_their_own_layers(tmp_path: Path) -> None:
    """Of five layers, three are on the first node and two on the second, whose memory is slower."""
    document = two_nodes(tmp_path, [3 * SLOW, SLOW], tp_size=2, pp_size=2)
    result = run(document, twice(tmp_path), prefix_storage="CPU")
    (pool,) = result.summary["kv_tiers"]
    assert pool["recalled_bytes"] == LOADED * TOKEN_BYTES
    by_hand = LINK_PS + moved_ps(LOADED * TOKEN_BYTES * 2 // LAYERS, SLOW)
    assert waited_ps(result)[2] == pytest.approx(by_hand, rel=1e-9)


def test_two_halves_on_one_node_wait_as_long(tmp_path: Path) -> None:
    """One memory that is twice as fast has the shares of both halves."""
    apart = run(two_nodes(tmp_path, [SLOW, SLOW]), twice(tmp_path), prefix_storage="CPU")
    together = run(one_node(tmp_path, 2 * SLOW), twice(tmp_path), prefix_storage="CPU")
    assert waited_ps(apart) == waited_ps(together)
    pools = [one.summary["kv_tiers"][0] for one in (apart, together)]
    assert pools[0].pop("capacity_bytes") == 2 * pools[1].pop("capacity_bytes")
    assert pools[0] == pools[1]


def test_an_instance_of_one_node_shares_its_memory(tmp_path: Path) -> None:
    """The second node has two ranks' shares of the first instance and all four of the second one:
    six transfers of as many bytes have a sixth of it each.
    """
    document = two_nodes(tmp_path, [SLOW, SLOW])
    first = document["nodes"][0]["instances"][0]
    document["nodes"][1]["instances"] = [{**first, "nnodes": 1}]
    result = run(document, twice(tmp_path, times=2), prefix_storage="CPU")
    assert [pool["recalled_bytes"] for pool in result.summary["kv_tiers"]] == (
        [LOADED * TOKEN_BYTES] * 2
    )
    each = LOADED * RANK_TOKEN_BYTES
    by_hand = [LINK_PS + moved_ps(6 * each, SLOW)] * 2
    assert waited_ps(result)[-2:] == [pytest.approx(one, rel=1e-9) for one in by_hand]


@pytest.mark.parametrize(
    ("layout", "sizes", "tokens"),
    [
        ({}, [10, 10], 20 * GIB // TOKEN_BYTES),
        ({}, [10, 4], 8 * GIB // TOKEN_BYTES),
        ({"tp_size": 2, "pp_size": 2}, [6, 10], 10 * GIB // TOKEN_BYTES),
        ({"tp_size": 2, "pp_size": 2}, [30, 4], 10 * GIB // TOKEN_BYTES),
    ],
)
def test_the_node_that_is_full_first_decides_how_many_tokens_a_pool_holds(
    tmp_path: Path, layout: dict[str, int], sizes: list[float], tokens: int
) -> None:
    """Stages have three and two of five layers."""
    document = with_memory(two_nodes(tmp_path, [SLOW, SLOW], **layout), [SLOW, SLOW], sizes)
    (pool,) = run(document, twice(tmp_path), prefix_storage="CPU").summary["kv_tiers"]
    assert pool["capacity_bytes"] // TOKEN_BYTES == tokens


def test_groups_of_a_node_have_equal_parts_of_its_memory(tmp_path: Path) -> None:
    document = with_memory(two_nodes(tmp_path, [SLOW, SLOW]), [SLOW, SLOW], [16, 16])
    first = document["nodes"][0]["instances"][0]
    document["nodes"][1]["instances"] = [{**first, "nnodes": 1}]
    pools = run(document, twice(tmp_path, 2), prefix_storage="CPU").summary["kv_tiers"]
    assert [pool["capacity_bytes"] for pool in pools] == [16 * GIB, 8 * GIB]


def test_what_the_first_memory_gives_up_moves_on_from_every_node(tmp_path: Path) -> None:
    """With write-back, chunks of a full host memory go to the pool, whose bytes are all of them."""
    document = two_nodes(tmp_path, [SLOW, SLOW])
    chunks = 5 * 256 * TOKEN_BYTES / 2 / GIB
    with_memory(document, [SLOW, SLOW], [chunks, chunks])
    document["cxl_mem"] = {"mem_size": 64, "mem_bw": 10, "mem_latency": 0, "num_devices": 1}
    result = run(document, twice(tmp_path), prefix_storage="CPU+CXL", kv_tier_write="write-back")
    host, pool = result.summary["kv_tiers"]
    assert host["evicted_chunks"] > 0
    assert pool["written_bytes"] == host["evicted_chunks"] * 256 * TOKEN_BYTES


@pytest.mark.parametrize("asked", [{"prefix_storage": "CPU"}, {"kv_offloading_size": 4}])
def test_both_nodes_draw_the_energy_of_what_they_move(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    """6 pJ for each bit to or from host memory, which are those of one node."""
    power = {
        "base_node_power": 0,
        "npu": {"H100": {"idle_power": 1, "standby_power": 1, "active_power": 1}
                | {"standby_duration": 1}},
        "dram": {"dimm_size": 64, "idle_power": 0, "energy_per_bit": 6},
    }  # fmt: skip
    drawn = []
    for document in (two_nodes(tmp_path, [SLOW, SLOW]), one_node(tmp_path, 2 * SLOW)):
        for node in document["nodes"]:
            node["power"] = power
        result = run(document, twice(tmp_path), **asked)
        drawn.append(result.summary["energy"]["components_j"]["dram"])
    tokens = 2 * 1024 + (LOADED if "prefix_storage" in asked else 1024)
    assert drawn[0] == drawn[1] == pytest.approx(tokens * TOKEN_BYTES * 8 * 6e-12, rel=1e-6)


def offloading(result: Any) -> dict[str, int]:
    found: dict[str, int] = result.summary["kv_offloading"]
    return found


@pytest.mark.parametrize(
    ("layout", "bandwidth", "share"),
    [
        ({}, [SLOW, SLOW], 0.5),
        ({}, [SLOW, 8 * SLOW], 0.5),
        ({"tp_size": 2, "pp_size": 2}, [SLOW, SLOW], 0.6),
        ({"tp_size": 2, "pp_size": 2}, [8 * SLOW, SLOW], 0.4),
    ],
)
def test_vllms_offloading_loads_from_the_memory_of_each_node(
    tmp_path: Path, layout: dict[str, int], bandwidth: list[float], share: float
) -> None:
    """A prompt of 1,024 tokens comes back; half the bandwidth doubles the time of the slower part
    and changes nothing else.
    """
    found = [
        run(
            two_nodes(tmp_path, [rate / n for rate in bandwidth], **layout),
            twice(tmp_path),
            kv_offloading_size=4,
        )
        for n in (1, 2)
    ]
    assert [offloading(one)["loaded_tokens"] for one in found] == [1024, 1024]
    longer = [int(one.requests["ttft_ps"].iloc[2]) for one in found]
    by_hand = moved_ps(round(1024 * TOKEN_BYTES * share), SLOW)
    assert longer[1] - longer[0] == pytest.approx(by_hand, rel=1e-6)


def test_vllms_offloading_has_all_of_its_bytes_on_every_host(tmp_path: Path) -> None:
    document = two_nodes(tmp_path, [1, 1])
    with_memory(document, [1, 1], [8, 6])
    run(document, twice(tmp_path), kv_offloading_size=6)
    with pytest.raises(InfeasibleError, match=r"nodes\[1\] is 7 GiB in all.*leaves \(6 GiB\)"):
        run(document, twice(tmp_path), kv_offloading_size=7)
    del document["nodes"][1]["cpu_mem"]
    with pytest.raises(InputError, match=r"nodes\[1\], or the node of layouts, has no cpu_mem"):
        run(document, twice(tmp_path), kv_offloading_size=6)


def test_ranks_of_several_nodes_store_the_same_latents_each(tmp_path: Path) -> None:
    """vLLM keeps them once in the memory of one node alone. A block of 16 tokens of 1,600 B takes
    seven pages of 4,096 B once, and 25 four times.
    """
    path = model(tmp_path, heads=16, experts=8, latent=True)
    chunks = {}
    for nnodes in (1, 2):
        document = over_nodes(
            path, nnodes, tp_size=4, engine_profile="vllm-0.33", kv_offloading_size=700 * 4096 / GIB
        )
        document["nodes"] = [dict(node) for node in document["nodes"]]
        (group,) = lowered(with_memory(document, [1.0] * nnodes)).groups
        chunks[nnodes] = group.scheduler.offloading.num_chunks
    assert chunks == {1: 100, 2: 28}


def test_hicache_has_pools_of_each_nodes_memory(tmp_path: Path) -> None:
    """The smaller memory has room for as many tokens on each rank, and the slower one decides how
    long a copy takes.
    """
    found, room = [], 10.0005  # GiB, of which 10 stay free
    for bandwidth, sizes in (([50, 50], [64, 64]), ([50, 5], [64, 64]), ([50, 50], [64, room])):
        document = two_nodes(tmp_path, bandwidth, scheduler="sglang")
        document["nodes"][0]["instances"][0] |= {"enable_hierarchical_cache": True}
        with_memory(document, bandwidth, sizes)
        found.append(lowered(document).groups[0].scheduler.host_cache)
    plain, slow, small = found
    assert plain.load_ps_per_token == RANK_TOKEN_BYTES * 1000 // 25
    assert slow.load_ps_per_token == 10 * plain.load_ps_per_token
    assert small.load_ps_per_token == plain.load_ps_per_token
    fits = int((room - 10) * GIB) // 2
    assert fits / 2 < small.pages * RANK_TOKEN_BYTES < fits < (plain.pages * RANK_TOKEN_BYTES)


def test_hicache_of_nodes_with_other_memories_is_not_the_same(tmp_path: Path) -> None:
    path = model(tmp_path, heads=16, kv_heads=16)
    document = over_nodes(path, 1, tp_size=2, scheduler="sglang", enable_hierarchical_cache=True)
    document["nodes"] = [dict(document["nodes"][0]) for _ in range(2)]
    groups = lowered(with_memory(document, [50, 5])).groups
    caches = [group.scheduler.host_cache for group in groups]
    assert caches[1].load_ps_per_token == 10 * caches[0].load_ps_per_token


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"prefix_storage": "SSD"}, "prefix_storage SSD"),
        ({"prefix_storage": "CPU", "enable_prefix_sharing": True}, "enable_prefix_sharing"),
    ],
)
def test_pools_that_do_not_run_on_several_nodes_are_named(
    tmp_path: Path, asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(NotYetError, match=f"nnodes 2 and {named}, which needs the memory of one"):
        run(two_nodes(tmp_path, [1, 1]), twice(tmp_path), **asked)


def test_storage_behind_hicache_is_that_of_one_node(tmp_path: Path) -> None:
    asked = {"enable_hierarchical_cache": True, "hicache_storage_backend": "file"}
    document = two_nodes(tmp_path, [50, 50], scheduler="sglang", **asked)
    with pytest.raises(NotYetError, match="storage behind an instance on several nodes"):
        lowered(document)
