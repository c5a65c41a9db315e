"""`host_link` of a node: what is below its devices takes it, and nothing else does."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmsim
from llmsim import _native
from llmsim.api.why.changes import faster_links, faster_memories
from llmsim.cli import main, run_main
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import InputError

LOAD = "synthetic:n=2,rate=1,input=fixed:32,output=fixed:8"
PREFIXES = "synthetic:n=40,rate=8,input=lognormal:200,output=lognormal:40,prefixes=4:tokens=768"
LAYER_BYTES = 2 * (6144 * 4096 + 4096 * 4096 + 3 * 14336 * 4096 + 2 * 4096)  # Llama-3.1-8B, bf16
COPIED = 32 * LAYER_BYTES + 2 * 128256 * 4096 + 2 * 4096
POOL = {"mem_size": 1024, "mem_bw": 60, "mem_latency": 250, "num_devices": 4}
DRIVE = {"mem_size": 512, "read_bw": 14, "write_bw": 6, "read_latency": 8e4, "write_latency": 1e4}
IN_HOST = {"placement": {"default": {"weights": "cpu"}}}
SMALL = {"model_name": "meta-llama/Llama-3.2-1B", "num_gpu_blocks_override": 120}
Json = dict[str, Any]


def cluster(*instances: Json, link: Any = (450, 32, 50), host: Json | None = None) -> Json:
    """One node of H100 with these keys in its instances, and a host link if given."""
    base = {"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100"}
    node: Json = {
        "cpu_mem": {"mem_size": 512, "mem_bw": 400, "mem_latency": 100},
        "storage": DRIVE,
        "instances": [{**base, **keys} for keys in instances],
    }
    if host is not None:
        node["host_link"] = host
    latency = [1000, 1500, 2000]
    return {"link_bw": list(link), "link_latency": latency, "cxl_mem": POOL, "nodes": [node]}


def run(fields: Json, load: str = LOAD, **options: Any) -> llmsim.Result:
    return llmsim.run(fields, load, cost_source="roofline", **options)


def pim(**keys: Any) -> Json:
    return {"enable_attn_offloading": True, **keys}


MOVES: dict[str, tuple[tuple[Json, ...], Json]] = {
    "weights alone": ((IN_HOST,), {}),
    "weights of ranks": (({**IN_HOST, "tp_size": 2},), {}),
    "weights of stages": (({**IN_HOST, "tp_size": 2, "pp_size": 2},), {}),
    "weights in the pool": (({"placement": {"default": {"weights": "cxl:1"}}},), {}),
    "weights of two": ((IN_HOST, IN_HOST), {}),
    "operators": (({"operator_devices": {"ffn": "cpu"}},), {}),
    "attention in memory": ((pim(), pim(tp_size=2)), {}),
    "tiers": ((SMALL, SMALL), {"prefix_storage": "CPU+CXL+SSD", "kv_tier_recall": "async"}),
    "tier of the cluster": ((SMALL,), {"prefix_storage": "NVMEOF"}),
    "vllm": (({**SMALL, "kv_offloading_size": 8, "engine_profile": "vllm-0.33"},), {}),
    "hicache": (
        (
            {
                **SMALL,
                "scheduler": "sglang",
                "enable_hierarchical_cache": True,
                "hicache_ratio": 9,
                "block_size": 1,
                "num_gpu_blocks_override": 4000,
            },
        ),
        {"max_model_len": 2048},
    ),
    "hand-over": (
        ({**SMALL, "pd_type": "prefill"}, {**SMALL, "pd_type": "decode"}),
        {"prefix_storage": "CPU"},
    ),
}


def moving(kind: str, **keys: Any) -> llmsim.Result:
    instances, options = MOVES[kind]
    fields = cluster(*copy.deepcopy(instances), **keys)
    fields["nodes"][0]["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    if kind == "tier of the cluster":
        fields["storage"] = DRIVE
    if kind == "attention in memory":
        fields["nodes"][0]["cpu_mem"]["pim_config"] = "HBM2_1GB_2000_pim"
    return run(fields, PREFIXES, **options)


@pytest.mark.parametrize("kind", MOVES)
def test_a_host_link_like_the_port_changes_nothing(kind: str) -> None:
    """Where nothing moves between instances, both names of the same link give the same times."""
    plain = moving(kind)
    stated = moving(kind, host={"bandwidth_gb_per_s": 32})
    if kind == "hand-over":  # that KV meets what goes to the host, and here does not
        assert stated.summary["mean_ttft_ms"] <= plain.summary["mean_ttft_ms"]
        return
    assert stated.requests.equals(plain.requests) and stated.steps.equals(plain.steps)


@pytest.mark.parametrize("kind", [kind for kind in MOVES if kind != "tier of the cluster"])
def test_everything_below_the_devices_takes_it(kind: str) -> None:
    fast = moving(kind, link=(450, 450, 50), host={"bandwidth_gb_per_s": 50, "latency_ns": 10})
    slow = moving(kind, link=(450, 450, 50), host={"bandwidth_gb_per_s": 1, "latency_ns": 1e6})
    assert slow.summary["mean_e2el_ms"] > fast.summary["mean_e2el_ms"]


def test_storage_behind_the_network_cards_does_not() -> None:
    fast = moving("tier of the cluster", host={"bandwidth_gb_per_s": 50})
    slow = moving("tier of the cluster", host={"bandwidth_gb_per_s": 1})
    assert slow.requests.equals(fast.requests)
    assert "carries nothing" in " ".join(slow.notes)


@pytest.mark.parametrize("rate", [12.5, 50])
def test_nvlink_and_pcie_by_hand(rate: float) -> None:
    """Weights cross PCIe at its rate, whatever NVLink carries: a step is as long as its copies."""
    found = run(cluster(IN_HOST, link=(450, 450, 50), host={"bandwidth_gb_per_s": rate})).summary
    least_ms = COPIED / rate / 1e6
    assert least_ms < found["mean_tpot_ms"] < 1.01 * least_ms
    assert "host_links" not in found  # the group is alone, and is folded


def tpot_ms(tp: int, sharers: int, load: str = LOAD, count: int = 1, **more: Any) -> float:
    link = {"bandwidth_gb_per_s": 12.5, "devices_per_link": sharers}
    instances = [{**IN_HOST, "tp_size": tp}] * count
    found = run(cluster(*instances, link=(450, 450, 50), host=link), load, **more)
    mean: float = found.summary["mean_tpot_ms"]
    return mean


@pytest.mark.parametrize("sharers", [1, 2, 4])
def test_ranks_on_one_link_share_it(sharers: int) -> None:
    """Four ranks copy a quarter each: over links of their own, or one for several of them."""
    share = 32 * LAYER_BYTES + 2 * 128256 * 4096
    least_ms = share / 4 * sharers / 12.5e6
    assert least_ms < tpot_ms(4, sharers) < 1.02 * least_ms


def test_ranks_of_a_folded_group_take_what_the_network_gives_them() -> None:
    """An idle second instance, in the same memory, puts the first one on the network."""
    one = "synthetic:n=1,rate=1,input=fixed:32,output=fixed:8"
    alone, beside = tpot_ms(2, 2, one), tpot_ms(2, 2, one, count=2)
    assert beside == pytest.approx(alone, rel=1e-6)


def test_instances_on_one_link_contend_and_on_two_do_not() -> None:
    both = "synthetic:n=2,rate=inf,input=fixed:32,output=fixed:8"
    alone, apart, shared = tpot_ms(1, 1), tpot_ms(1, 1, both, 2), tpot_ms(1, 2, both, 2)
    assert apart == pytest.approx(alone, rel=0.01)
    assert shared == pytest.approx(2 * alone, rel=0.02)


def test_attention_in_memory_of_two_instances_on_one_link_contends() -> None:
    def ms(sharers: int) -> float:
        fields = cluster(pim(), pim(), host={"bandwidth_gb_per_s": 4, "devices_per_link": sharers})
        fields["nodes"][0]["cpu_mem"]["pim_config"] = "HBM2_1GB_2000_pim"
        load = "synthetic:n=2,rate=inf,input=fixed:900,output=fixed:4"
        found: float = run(fields, load).summary["mean_ttft_ms"]
        return found

    assert ms(2) > 1.5 * ms(1)


def network(**host: Any) -> tuple[Any, list[int], int]:
    """Two devices and a memory: ports of 10^10 bytes/s, and links to the host as given."""
    config = _native.NetworkConfig(_native.Sharing.FAIR)

    def link(rate: int) -> tuple[int, int]:
        return config.add_link(rate, 0), config.add_link(rate, 0)

    one = link(10**9)
    ends = [one, one] if host.get("shared") else [one, link(10**9)]
    devices = [
        config.add_place(0, link(10**10), (-1, -1), host=end, host_latency_ps=7) for end in ends
    ]
    memory = config.add_link(10**10, 0)
    place = config.add_place(0, (memory, memory), (-1, -1), near_latency_ps=-1, below=True)
    return config, devices, place


def test_transfers_to_the_host_by_hand() -> None:
    size, second = 10**6, 10**9  # 10^6 bytes at 10^9 bytes/s
    for shared, slower in ((False, 1), (True, 2)):
        config, (a, b), memory = network(shared=shared)
        landed, _, _ = config.probe([(0, a, memory, size), (0, b, memory, size)])
        assert landed.tolist() == [slower * second] * 2
        landed, _, _ = config.probe([(0, memory, a, size), (0, b, memory, size)])
        assert landed.tolist() == [second] * 2  # both directions at once
        landed, _, _ = config.probe([(0, a, b, size), (0, a, memory, size)])
        assert landed.tolist() == [second // 10, second]  # NVLink beside PCIe


def test_the_network_has_a_link_for_each_so_many_devices() -> None:
    fields = cluster({**SMALL, "tp_size": 2}, SMALL, SMALL)
    fields["nodes"][0]["host_link"] = {"bandwidth_gb_per_s": 55, "devices_per_link": 3}
    result = run(fields, PREFIXES, prefix_storage="CPU")
    rows = result.summary["host_links"]
    assert [row["devices"] for row in rows] == [[0, 1, 2], [3]]
    assert {row["bytes_per_s"] for row in rows} == {55 * 10**9}
    written = sum(row["to_host_bytes"] for row in rows)
    recalled = sum(row["from_host_bytes"] for row in rows)
    tiers = result.summary["kv_tiers"]
    assert written == sum(tier["written_bytes"] for tier in tiers) > 0
    assert recalled == sum(tier["recalled_bytes"] for tier in tiers) > 0
    assert 0 < rows[0]["to_host_busy"] < 1
    assert set(result.summary["invariants"].values()) == {"ok"}


def test_the_summary_numbers_the_links_of_links_parquet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(cluster(SMALL, host={"bandwidth_gb_per_s": 55})), encoding="utf-8")
    out = tmp_path / "run"
    arguments = ["--cluster-config", str(path), "--dataset", PREFIXES, "--cost-source", "roofline"]
    assert run_main([*arguments, "--prefix-storage", "CPU", "--run-dir", str(out), "-v"]) == 0
    assert re.search(r"Host link, node 0: +device 0: ", capsys.readouterr().out)
    page = tmp_path / "report.html"
    assert main(["report", str(out), "-o", str(page)]) == 0
    assert "Links from hosts, busiest" in page.read_text(encoding="utf-8")
    [row] = json.loads((out / "summary.json").read_text(encoding="utf-8"))["host_links"]
    links = pd.read_parquet(out / "links.parquet").groupby("link").bytes.sum()
    assert links[row["to_host_link"]] == row["to_host_bytes"]
    assert links[row["from_host_link"]] == row["from_host_bytes"]


def test_each_node_has_its_own() -> None:
    """One pool for two nodes: each reads it over its own links, one with more latency."""
    fields = cluster(SMALL, host={"bandwidth_gb_per_s": 50, "latency_ns": 100})
    far = copy.deepcopy(fields["nodes"][0])
    far["host_link"] = {"bandwidth_gb_per_s": 50, "latency_ns": 5e6}
    fields["nodes"].append(far)
    result = run(fields, PREFIXES, prefix_storage="CXL", enable_prefix_sharing=True)
    near, late = (result.requests[result.requests.group == group] for group in (0, 1))
    shortest = [min(one.kv_transfer_ps[one.kv_transfer_ps > 0]) for one in (near, late)]
    assert shortest[0] < 5 * 10**9 < shortest[1]


def test_hicache_and_adapters_by_hand() -> None:
    hicache = {**SMALL, "scheduler": "sglang", "enable_hierarchical_cache": True, "block_size": 1}
    keys = {"tp_size": 4, "num_gpu_blocks_override": 4000, "hicache_ratio": 2.0}
    link = {"bandwidth_gb_per_s": 20, "latency_ns": 700, "devices_per_link": 2}
    fields = cluster({**hicache, **keys}, link=(450, 450, 50), host=link)
    result = run(fields, max_model_len=2048)
    cache = result._prepared.lowered.groups[0].scheduler.host_cache
    token_bytes = 16 * 2 * 2 * 64 * 2  # layers, key and value, heads of a rank, head, bytes
    assert cache.load_ps_per_token == token_bytes * 1000 // 10  # half of 20 GB/s
    assert cache.copy_latency_ps == 800_000  # of the link and of the memory
    adapters = {"max_loras": 1, "engine_profile": "vllm-0.33"}
    fields = cluster({**SMALL, "tp_size": 4, **adapters}, link=(450, 450, 50), host=link)
    [load] = [
        op for op in run(fields)._prepared.lowered.groups[0].operators if op.name == "lora_load"
    ]
    assert load.rate.bytes_per_s == 10 * 10**9
    assert load.rate.source == "host_link and cpu_mem of the cluster file"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"bandwidth_gb_per_s": 0}, "nodes[0].host_link.bandwidth_gb_per_s is 0"),
        ({"bandwidth_gb_per_s": -4}, "nodes[0].host_link.bandwidth_gb_per_s is -4"),
        ({"bandwidth_gb_per_s": "55"}, 'nodes[0].host_link.bandwidth_gb_per_s is "55"'),
        ({"latency_ns": 500}, "nodes[0].host_link.bandwidth_gb_per_s is missing"),
        ({"bandwidth_gb_per_s": 55, "latency_ns": -1}, "nodes[0].host_link.latency_ns is -1"),
        (
            {"bandwidth_gb_per_s": 55, "devices_per_link": 0},
            "nodes[0].host_link.devices_per_link is 0",
        ),
        ({"bandwidth_gbps": 55}, "nodes[0].host_link.bandwidth_gbps is not a known key"),
        (55, "nodes[0].host_link is 55"),
    ],
)
def test_wrong_values_are_named(link: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_cluster(json.dumps(cluster({}, host=link)))
    assert message in str(refused.value)


def test_a_link_that_is_too_fast_to_share_is_refused() -> None:
    fields = cluster(SMALL, host={"bandwidth_gb_per_s": 1e6})
    with pytest.raises(InputError, match=r"nodes\[0\]\.host_link\.bandwidth_gb_per_s is 1e\+06"):
        run(fields, PREFIXES, prefix_storage="CPU")


def test_a_link_that_carries_nothing_is_noted() -> None:
    found = run(cluster({}, host={"bandwidth_gb_per_s": 55})).notes
    assert any(note.startswith("nodes[0].host_link carries nothing") for note in found)
    found = run(cluster(IN_HOST, host={"bandwidth_gb_per_s": 55})).notes
    assert not any("carries nothing" in note for note in found)


def test_config_explain_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(cluster({}, host={"bandwidth_gb_per_s": 55})), encoding="utf-8")
    assert main(["config", "explain", str(path), "--field", "nodes[0].host_link"]) == 0
    shown = capsys.readouterr().out
    assert "nodes[0].host_link.bandwidth_gb_per_s" in shown and "55" in shown
    assert "nodes[0].host_link.latency_ns" in shown and "1500" in shown
    assert shown.count("cluster file") == 2 and "default" in shown


def test_a_cluster_has_one_for_nodes_that_give_none() -> None:
    """The node's own comes first, as do its values in notes and in what would be faster."""
    fields = cluster(SMALL, host={"bandwidth_gb_per_s": 9})
    fields["nodes"].append(copy.deepcopy(fields["nodes"][0]))
    del fields["nodes"][1]["host_link"]
    fields["host_link"] = {"bandwidth_gb_per_s": 50, "devices_per_link": 4}
    result = run(fields, PREFIXES, prefix_storage="CPU")
    rates = [row["bytes_per_s"] for row in result.summary["host_links"]]
    assert rates == [9 * 10**9, 50 * 10**9]
    changed = faster_memories(4.0, "").make(result.inputs).cluster.fields()
    assert changed["link_bw"] == [450, 32, 50]
    assert changed["host_link"]["bandwidth_gb_per_s"] == 200
    assert changed["nodes"][0]["host_link"]["bandwidth_gb_per_s"] == 36
    notes = run(fields).notes
    assert sum("host_link carries nothing" in note for note in notes) == 2


def test_layouts_have_it_in_their_node() -> None:
    """Each of four devices loads its part of the weights over its half of a link."""
    one = {"model_name": "meta-llama/Llama-3.2-1B", "hardware": "H100"}
    fields: Json = {
        "link_bw": 450,
        "link_latency": 1000,
        "layouts": {"many": [{**one, "count": 4}], "wide": [{**one, "tp_size": 4}]},
        "node": {
            "devices": 4,
            "cpu_mem": {"mem_size": 512, "mem_bw": 400},
            "host_link": {"bandwidth_gb_per_s": 40, "devices_per_link": 2},
        },
        "switch": [{"to": "wide", "when": {"at_s": 0}}],
        "reconfiguration": {"weights": "host"},
    }
    given = copy.deepcopy(fields)
    given["reconfiguration"]["host_gb_per_s"] = 20
    seconds = [run(one).summary["reconfigurations"][0]["weights_s"] for one in (fields, given)]
    assert seconds[0] == seconds[1] > 0
    del fields["node"]["host_link"]
    slower = run(fields).summary["reconfigurations"][0]["weights_s"]
    assert slower == pytest.approx(seconds[0] * 20 / 50, rel=1e-6)


def test_why_speeds_up_the_link_that_there_is() -> None:
    host = {"bandwidth_gb_per_s": 50, "latency_ns": 800}
    result = run(cluster(SMALL, host=host), PREFIXES, prefix_storage="CPU")
    inputs = result.inputs
    links = faster_links(4.0, "").make(inputs).cluster.fields()
    assert links["link_bw"] == [1800, 128, 200]
    assert links["nodes"][0]["host_link"] == {"bandwidth_gb_per_s": 200, "latency_ns": 200}
    memories = faster_memories(4.0, "").make(inputs).cluster.fields()
    assert memories["link_bw"] == [450, 32, 50]
    assert memories["nodes"][0]["host_link"]["bandwidth_gb_per_s"] == 200
    assert memories["nodes"][0]["cpu_mem"]["mem_bw"] == 1600
    result = run(cluster(SMALL), PREFIXES, prefix_storage="CPU")
    plain = faster_memories(4.0, "").make(result.inputs).cluster.fields()
    assert plain["link_bw"] == [1800, 128, 200] and "host_link" not in plain["nodes"][0]


def test_devices_of_a_node_are_counted_over_its_instances() -> None:
    fields = cluster({"tp_size": 2}, {}, host={"bandwidth_gb_per_s": 9, "devices_per_link": 2})
    fields["nodes"].append({**copy.deepcopy(fields["nodes"][0]), "instances": [{**SMALL}]})
    fields["nodes"][1]["instances"][0]["hardware"] = "H100"
    for node in fields["nodes"]:
        for one in node["instances"]:
            one["npu_mem"] = {"mem_size": 80, "mem_bw": 3350}
    links = resolve(parse_cluster(json.dumps(fields)), EngineOverrides()).host_links
    assert [links.links(group) for group in range(3)] == [((0, 0), (0, 0)), ((0, 1),), ((1, 0),)]
    assert links.port(0, 2).latency_ps == 1_500_000  # the second number of link_latency
    assert links.port(0, 2).bandwidth_bytes_per_s == 4_500_000_000
    assert links.port(0, 1).bandwidth_bytes_per_s == 9_000_000_000


def test_a_topology_keeps_the_links_to_the_host() -> None:
    """Devices reach each other by its routes, and their hosts by links of their own."""
    times = []
    for rate in (50, 0.5):
        fields = cluster({**SMALL, "tp_size": 2}, host={"bandwidth_gb_per_s": rate})
        fields["topology"] = "dgx_h100"
        result = run(fields, PREFIXES, prefix_storage="CPU", collective_costs="links")
        assert [row["devices"] for row in result.summary["host_links"]] == [[0], [1]]
        assert set(result.summary["invariants"].values()) == {"ok"}
        times.append(result.summary["mean_ttft_ms"])
    assert times[1] > times[0]


def test_first_come_first_served_on_a_shared_link() -> None:
    """Copies of two ranks take turns, and a step ends with the second one."""
    one = "synthetic:n=1,rate=1,input=fixed:32,output=fixed:8"
    fair, turns = (
        tpot_ms(2, 2, one, network_backend=backend)
        for backend in ("analytical", "congestion-aware")
    )
    assert turns == pytest.approx(fair, rel=0.02)


def test_rows_between_attention_and_ffn_do_not_meet_kv_on_the_way_to_the_host() -> None:
    """Without a link of its own the KV shares the port that rows take."""
    base = {"model_name": "microsoft/Phi-mini-MoE-instruct", "afd_group": "a"}
    sides = (
        {**base, "pd_type": "attention", "num_gpu_blocks_override": 200},
        {**base, "pd_type": "ffn"},
    )
    met = run(cluster(*sides, link=(450, 8, 8)), PREFIXES, prefix_storage="CPU").summary
    apart = run(
        cluster(*sides, link=(450, 8, 8), host={"bandwidth_gb_per_s": 8}),
        PREFIXES,
        prefix_storage="CPU",
    ).summary
    assert apart["mean_e2el_ms"] <= met["mean_e2el_ms"]
    assert set(apart["invariants"].values()) == {"ok"}
