"""Disaggregated clusters from the file to the outputs."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import InputError, LlmsimError, NotYetError
from llmsim.core import Results
from llmsim.export.csv import write_csv
from llmsim.export.parquet import write_requests
from llmsim.export.step_graph.graph import iteration_graph
from llmsim.lowering.network.contended import meeting
from llmsim.model import load_model
from llmsim.results.summary import summary
from llmsim.rounds import round_of
from llmsim.simulation.run import simulate

ROOT = Path(__file__).resolve().parents[2]
TRACE = "synthetic:n=60,rate=20,input=lognormal:300,output=lognormal:40,seed=3"
EXAMPLES = sorted((ROOT / "cluster_config").glob("*_pd*.json"))
MEMORY = {"mem_size": 79.1, "mem_bw": 3350, "mem_latency": 0}


EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7}


def instance(role: str | None, **more: Any) -> dict[str, Any]:
    base = {
        "model_name": "meta-llama/Llama-3.1-8B",
        "hardware": "H100",
        "npu_mem": MEMORY,
        "pd_type": role,
    }
    return {**base, "num_npus": more.get("tp_size", 1), **more}


def cluster(*nodes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "link_bw": 50,
        "link_latency": 1000,
        "nodes": [{"instances": list(node)} for node in nodes],
        **more,
    }


def run(path: Path, *arguments: str, trace: str = TRACE) -> Results:
    prepared = prepare(
        checked_options(["--cluster-config", str(path), "--dataset", trace, *arguments])
    )
    return simulate(prepared.lowered, prepared.workload, prepared.simulation)


def written(tmp_path: Path, document: dict[str, Any]) -> Path:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def assert_sound(results: Results) -> None:
    assert set(results.invariants.values()) == {"ok"}
    assert (results.requests.emitted_tokens == results.workload.output_tokens).all()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path) -> None:
    results = run(path)
    assert_sound(results)
    assert results.kv_transfers is not None and (results.kv_transfers.prefill_group >= 0).all()
    assert summary(results, {})["kv_transfer"]["requests"] == len(results.workload)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize(
    "how", [(), ("--kv-transfer-mode", "push"), ("--kv-transfer", "layerwise")]
)
def test_folded_is_expanded(tmp_path: Path, how: tuple[str, ...]) -> None:
    path = written(
        tmp_path, cluster([instance("prefill", tp_size=2), instance("decode", tp_size=4)])
    )
    trace = "synthetic:n=6,rate=20,input=fixed:200,output=fixed:4,seed=1"
    folded, exact = run(path, *how, trace=trace), run(path, *how, "--exact", trace=trace)
    assert_sound(exact)
    for name, column in vars(folded.requests).items():
        assert (getattr(exact.requests, name) == column).all()


def test_bytes_are_the_tokens_that_were_not_there(tmp_path: Path) -> None:
    """131,072 B of KV per token of Llama-3.1-8B, whatever the layouts; more where ranks outnumber
    KV heads.
    """
    for prefill, decode, copies in ((1, 1, 1), (4, 2, 1), (2, 4, 1)):
        document = cluster(
            [instance("prefill", tp_size=prefill)], [instance("decode", tp_size=decode)]
        )
        results = run(written(tmp_path, document))
        h = results.kv_transfers
        assert h is not None
        tokens = results.workload.input_tokens - h.decode_cached_tokens
        assert (h.kv_transfer_bytes == tokens.astype(np.int64) * 131_072 * copies).all()


@pytest.mark.parametrize("how", [(), ("--kv-transfer", "layerwise")])
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"tp_size": 2}, {"tp_size": 4, "decode_context_parallel_size": 4}),
        ({"num_npus": 4, "tp_size": 2, "prefill_context_parallel_size": 2}, {"tp_size": 2}),
        (
            {
                "num_npus": 4,
                "tp_size": 2,
                "prefill_context_parallel_size": 2,
                "decode_context_parallel_size": 2,
            },
            {"tp_size": 4, "decode_context_parallel_size": 2},
        ),
    ],
)
def test_ranks_that_share_sequences_hand_over(
    tmp_path: Path, prefill: dict[str, Any], decode: dict[str, Any], how: tuple[str, ...]
) -> None:
    """Latent attention: each token's 31,104 B are on one of the decode ranks that share it, on each
    set of them.
    """
    sides = [
        instance(
            role, model_name="deepseek-ai/DeepSeek-V2-Lite", **{"num_npus": keys["tp_size"], **keys}
        )
        for role, keys in (("prefill", prefill), ("decode", decode))
    ]
    path = written(tmp_path, cluster(sides))
    trace = "synthetic:n=6,rate=20,input=fixed:200,output=fixed:4,seed=1"
    folded, exact = run(path, *how, trace=trace), run(path, *how, "--exact", trace=trace)
    assert_sound(folded)
    for name, column in vars(folded.requests).items():
        assert (getattr(exact.requests, name) == column).all(), name
    copies = decode["tp_size"] // decode.get("decode_context_parallel_size", 1)
    h = folded.kv_transfers
    assert h is not None
    tokens = (folded.workload.input_tokens - h.decode_cached_tokens).astype(np.int64)
    assert (h.kv_transfer_bytes == tokens * 27 * 576 * 2 * copies).all()


def test_slow_links_show_in_the_first_token_and_in_the_blame(tmp_path: Path) -> None:
    pair = [instance("prefill"), instance("decode")]
    at_once = ("prepare_ns", "launch_ns", "kv_read_ns", "kv_descriptor_ns")
    quick = {"engine": dict.fromkeys(at_once, 0)}
    fast = run(written(tmp_path, cluster(pair, link_bw=400, **quick)))
    slow = run(written(tmp_path, cluster(pair, link_bw=0.4, **quick)))
    layers = run(written(tmp_path, cluster(pair, link_bw=0.4, kv_transfer="layerwise", **quick)))
    moved = int(fast.kv_transfers.kv_transfer_bytes.sum())  # type: ignore[union-attr]
    assert slow.blame["kv_transfer_ps"].sum() > 900 * fast.blame["kv_transfer_ps"].sum()
    assert int(slow.blame["kv_transfer_ps"].sum()) >= moved * 10**12 // 400_000_000
    assert layers.blame["kv_transfer_ps"].sum() < slow.blame["kv_transfer_ps"].sum()
    assert summary(slow, {})["mean_ttft_ms"] > summary(fast, {})["mean_ttft_ms"]


def test_more_prefill_groups_and_their_routers(tmp_path: Path) -> None:
    path = written(tmp_path, cluster([instance("prefill")] * 3, [instance("decode")] * 2))
    results = run(path, "--request-routing-policy", "RR", "--decode-routing-policy", "RR")
    assert_sound(results)
    assert results.kv_transfers is not None
    assert results.kv_transfers.prefill_group.tolist() == [i % 3 for i in range(60)]
    order = np.argsort(results.kv_transfers.prefill_end_ps, kind="stable")
    assert set(results.requests.group.tolist()) == {3, 4} and results.requests.group[
        order
    ].tolist()[:2] == [3, 4]


def test_the_files_name_both_groups(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    results = run(written(tmp_path, cluster([instance("prefill"), instance("decode")])))
    write_csv(results, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["instance id"], row["prefill instance id"]) for row in rows} == {("1", "0")}
    assert sum(int(row["KV bytes"]) for row in rows) == int(
        results.kv_transfers.kv_transfer_bytes.sum()
    )  # type: ignore[union-attr]
    write_requests(results, tmp_path / "requests.parquet")
    table = pq.read_table(tmp_path / "requests.parquet").to_pydict()
    assert set(table["group"]) == {1} and set(table["prefill_group"]) == {0}
    landed_ps = results.kv_transfers.kv_landed_ps.tolist()  # type: ignore[union-attr]
    assert table["kv_landed_ps"] == landed_ps
    assert min(table["kv_transfer_ps"]) > 0


MOE = {"model_name": "Qwen/Qwen3-30B-A3B-Instruct-2507"}


@pytest.mark.parametrize(
    "how", [(), ("--kv-transfer-mode", "push"), ("--kv-transfer", "layerwise")]
)
def test_ranks_that_share_experts_hand_over(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Two prefill ranks in lock-step on one node, two decode ranks in lock-step on another."""
    prefill = [instance("prefill", dp_group="p", **MOE)] * 2
    decode = [instance("decode", dp_group="d", **MOE)] * 2
    assert_sound(run(written(tmp_path, cluster(prefill, decode)), *how, "--check-every-step"))


@pytest.mark.parametrize("group", [0, 2])
def test_steps_on_shared_links_last_as_long_as_their_graphs(tmp_path: Path, group: int) -> None:
    """The engine's flows on the cluster's links against the folded graph, where no KV is on its way
    meanwhile.
    """
    keys = {**MOE, "async_scheduling": False, "launch_ns": 0}
    keys |= {"kv_read_ns": 0, "kv_descriptor_ns": 0}
    roles = [[instance(role, dp_group=role, **keys)] * 2 for role in ("prefill", "decode")]
    path = written(tmp_path, cluster([*roles[0], *roles[1]]))
    trace = "synthetic:n=4,rate=0.2,input=lognormal:200,output=fixed:4,seed=1"  # five seconds apart
    given = ["--cluster-config", str(path), "--dataset", trace, "--collective-costs", "links"]
    prepared = prepare(checked_options(given))
    assert [shared.groups for shared in prepared.lowered.contended] == [(0, 1), (2, 3)]
    assert all(shared.collectives for shared in prepared.lowered.contended)
    results = simulate(
        prepared.lowered, prepared.workload, replace(prepared.simulation, record_steps=True)
    )
    steps = {name: np.asarray(column) for name, column in results.steps.items()}
    for iteration in (0, 1, 3):
        batch = round_of(prepared.lowered, prepared.workload, prepared.simulation, group, iteration)
        graph = iteration_graph(prepared.lowered.groups, group, batch)
        assert any(node.kind == "collective" and node.on_links for node in graph.nodes)
        place = int(np.flatnonzero(steps["tokens"][steps["group"] == group] > 0)[iteration])
        for member, end_ps in zip(graph.members, graph.member_ends_ps(), strict=True):
            mine = steps["group"] == member
            took = int(steps["end_ps"][mine][place] - steps["start_ps"][mine][place])
            assert took - prepared.lowered.groups[member].engine.host_gap_ps == end_ps


def _ranks_with_roles(*nodes: list[str]) -> dict[str, Any]:
    """Two ranks in lock-step of each role, on the nodes that name it once or twice."""
    return cluster(*([instance(role, dp_group=role, **MOE) for role in node] for node in nodes))


@pytest.mark.parametrize(
    ("nodes", "more", "shared"),
    [
        (["prefill"] * 2 + ["decode"] * 2, (), [(0, 1), (2, 3)]),
        ([["prefill"] * 2, ["decode"] * 2], (), []),
        ([["prefill"] * 2, ["decode"], ["decode"]], (), [(2, 3)]),
        ([["prefill"] * 2 + ["decode"], ["decode"]], (), [(0, 1), (2, 3)]),
        ([["prefill"] * 2, ["decode"] * 2], ("--prefix-storage", "CPU"), [(0, 1), (2, 3)]),
    ],
    ids=["one node", "a node each", "decodes apart", "a node for three", "tiers"],
)
def test_collectives_share_ports_with_kv_that_takes_them(
    nodes: list[Any], more: tuple[str, ...], shared: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """Between nodes KV takes network cards, and collectives inside a node the switch."""
    document = _ranks_with_roles(*(nodes if isinstance(nodes[0], list) else [nodes]))
    for node in document["nodes"]:
        node["cpu_mem"] = {"mem_size": 512, "mem_bw": 256, "mem_latency": 0}
    options = ["--cluster-config", str(written(tmp_path, document)), "--dataset", TRACE, *more]
    prepared = prepare(checked_options(options))
    assert [domain.groups for domain in prepared.lowered.contended] == shared


def test_collectives_on_ports_of_their_own_take_as_long_as_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, _ranks_with_roles(["prefill"] * 2, ["decode"] * 2))
    apart = run(path)
    monkeypatch.setattr(meeting, "_shares_ports_with_kv", lambda *_, tiers: True)
    flows = run(path)
    carried = [int(np.sum(one.links["bytes"])) for one in (flows, apart)]
    assert carried[0] > carried[1] > 0, "flows are on the links of the network"
    for name in ("first_token_ps", "finish_ps", "group"):
        assert getattr(flows.requests, name).tolist() == getattr(apart.requests, name).tolist()


NEXT = {"model_name": "Qwen/Qwen3-Next-80B-A3B-Instruct", "tp_size": 4}
HYBRIDS = {
    "google/gemma-3-27b-it": (2, 10 * 8192, 52 * 8192, 0),
    "openai/gpt-oss-120b": (2, 18 * 2048, 18 * 2048, 0),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        4,
        12 * 4 * 1024,
        0,
        36 * (32 * 128 * 128 * 2 + 3 * 8192 * 2),
    ),
}
"""Model: TP, bytes per token in layers that keep all, in layers with a window, bytes of state; of
two KV heads each is on two of four ranks.
"""


@pytest.mark.parametrize(
    "how", [(), ("--kv-transfer-mode", "push"), ("--kv-transfer", "layerwise")]
)
@pytest.mark.parametrize("name", HYBRIDS)
def test_models_of_several_kinds_of_layers_hand_over(
    tmp_path: Path, name: str, how: tuple[str, ...]
) -> None:
    """Whole prompts of the layers that keep them, the window's blocks of others, one state of the
    rest.
    """
    tp, full, sliding, state = HYBRIDS[name]
    pair = [instance(role, model_name=name, tp_size=tp) for role in ("prefill", "decode")]
    trace = "synthetic:n=20,rate=5,input=lognormal:1500:max=6000,output=lognormal:20,seed=3"
    results = run(
        written(tmp_path, cluster(pair)),
        *how,
        "--max-model-len",
        "8192",
        "--max-num-seqs",
        "64",
        trace=trace,
    )
    assert_sound(results)
    h = results.kv_transfers
    assert h is not None
    window = load_model(name).window
    for prompt, cached, moved in zip(
        results.workload.input_tokens.tolist(),
        h.decode_cached_tokens.tolist(),
        h.kv_transfer_bytes.tolist(),
        strict=True,
    ):
        computed = prompt - 1 if state else prompt
        kept = (
            min(computed - cached, computed - (-(-computed // 16) - (-(-window // 16) + 1)) * 16)
            if sliding
            else 0
        )
        assert moved == (computed - cached) * full + kept * sliding + state
    assert results.counters["prompt_tokens"][0] == results.workload.input_tokens.sum() - len(
        results.workload
    ) * bool(state)


@pytest.mark.parametrize(
    "how", [(), ("--kv-transfer-mode", "push"), ("--kv-transfer", "layerwise")]
)
@pytest.mark.parametrize("tps", [(1, 1), (1, 2), (2, 1)])
def test_drafters_on_both_sides_hand_their_layers_over(
    tmp_path: Path, how: tuple[str, ...], tps: list[int]
) -> None:
    """33 layers instead of 32; the decode side drafts, and answers come in strides; folded is
    expanded.
    """
    pair = [
        instance(role, speculative_config=EAGLE, tp_size=tp)
        for role, tp in zip(("prefill", "decode"), tps, strict=True)
    ]
    path = written(tmp_path, cluster(pair))
    results = run(path, *how, "--check-every-step")
    assert_sound(results)
    h = results.kv_transfers
    assert h is not None
    tokens = (results.workload.input_tokens - h.decode_cached_tokens).astype(np.int64)
    assert (h.kv_transfer_bytes == tokens * 131_072 // 32 * 33).all()
    drafted = summary(results, {})["speculation"]
    assert drafted["tokens_per_verification"] > 1.5
    trace = "synthetic:n=6,rate=20,input=fixed:200,output=fixed:9,seed=1"
    folded, exact = run(path, *how, trace=trace), run(path, *how, "--exact", trace=trace)
    assert_sound(exact)
    for name, column in vars(folded.requests).items():
        assert (getattr(exact.requests, name) == column).all()


def test_lookups_need_no_counterpart(tmp_path: Path) -> None:
    ngram = {**EAGLE, "method": "ngram"}
    pair = [instance("prefill"), instance("decode", speculative_config=ngram)]
    results = run(written(tmp_path, cluster(pair)))
    assert_sound(results)
    assert summary(results, {})["speculation"]["accepted_tokens"] > 0


@pytest.mark.parametrize(
    "how", [(), ("--kv-transfer-mode", "push"), ("--kv-transfer", "layerwise")]
)
def test_sglang_on_both_sides(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Under pressure: the decode pool holds a sixth of what all requests need together."""
    pair = [instance("prefill", scheduler="sglang"), instance("decode", scheduler="sglang")]
    trace = (
        "synthetic:n=200,rate=100,input=lognormal:300:max=900,output=lognormal:60:max=200,seed=3"
    )
    for blocks in (100_000, 8000):
        pair[1]["num_gpu_blocks_override"] = blocks
        results = run(written(tmp_path, cluster(pair)), *how, "--check-every-step", trace=trace)
        assert_sound(results)


def test_layers_of_several_kinds_need_equal_blocks(tmp_path: Path) -> None:
    name = "google/gemma-3-27b-it"
    pair = [instance(role, model_name=name, tp_size=2) for role in ("prefill", "decode")]
    pair[1]["block_size"] = 32
    with pytest.raises(InputError, match=r"block_size is 16 in the first and 32 in the second"):
        run(written(tmp_path, cluster(pair)))


@pytest.mark.parametrize(
    "how", [(), ("--kv-transfer-mode", "push"), ("--kv-transfer", "layerwise")]
)
def test_clients_may_give_up_at_any_time(tmp_path: Path, how: tuple[str, ...]) -> None:
    pair = [
        instance("prefill", num_gpu_blocks_override=300),
        instance("decode", num_gpu_blocks_override=300),
    ]
    path = written(tmp_path, cluster(pair, link_bw=4))
    trace = (
        "synthetic:n=300,rate=40,input=lognormal:400:max=2000,output=lognormal:60:max=200,seed=1"
    )
    results = run(path, *how, "--request-timeout", "1.5", "--check-every-step", trace=trace)
    status = results.requests.status
    assert set(results.invariants.values()) == {"ok"}
    assert (status == 3).sum() > 20 and (status == 5).sum() > 20 and np.isin(status, (3, 5)).all()


REFUSED: list[tuple[list[dict[str, Any]], dict[str, Any], type[LlmsimError], str]] = [
    (
        [instance("prefill")],
        {},
        InputError,
        'no instance of meta-llama/Llama-3.1-8B has the pd_type "decode"',
    ),
    ([instance("decode"), instance(None)], {}, InputError, 'has the pd_type "prefill"'),
    (
        [instance("prefill"), instance("decode")],
        {"kv_transfer": "layerwise", "kv_transfer_mode": "pull"},
        InputError,
        "nothing is left to move layer by layer",
    ),
    (
        [instance("prefill", scheduler="orca"), instance("decode")],
        {},
        InputError,
        "engines hand KV over to their own kind: give both the same",
    ),
    (
        [instance("prefill", scheduler="sglang"), instance("decode")],
        {},
        InputError,
        "give both the same",
    ),
    (
        [instance("prefill"), instance("decode", speculative_config=EAGLE)],
        {},
        InputError,
        (
            "drafts come from no model in the first and from one layer of meta-llama/Llama-3.1-8B "
            "in the second"
        ),
    ),
    (
        [
            instance(role, scheduler="sglang", scheduling_policy="priority", **NEXT)
            for role in ("prefill", "decode")
        ],
        {},
        NotYetError,
        "linear attention keeps states",
    ),
    (
        [instance("prefill", skip_prefill=True), instance("decode")],
        {},
        InputError,
        "no prefills to separate",
    ),
    (
        [instance("prefill"), instance("decode", kv_cache_dtype="fp8")],
        {},
        InputError,
        "kv_cache_dtype is",
    ),
    ([instance("prefill"), instance("decode")], {"kv_transfer": "half"}, InputError, "kv_transfer"),
]


@pytest.mark.parametrize(
    ("instances", "keys", "kind", "words"), REFUSED, ids=[words for *_, words in REFUSED]
)
def test_what_does_not_fit_together_is_refused_in_one_sentence(
    tmp_path: Path,
    instances: list[dict[str, Any]],
    keys: dict[str, Any],
    kind: type[LlmsimError],
    words: str,
) -> None:
    with pytest.raises(kind) as caught:
        run(written(tmp_path, cluster(instances, **keys)))
    assert (
        words in str(caught.value)
        and "cluster.json" in str(caught.value)
        and "\n" not in str(caught.value)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kv-transfer", "half"), '"half"; it may be whole or chunked or layerwise'),
        (("--kv-transfer-mode", "shove"), "it may be pull or push"),
        (("--kv-transfer", "layerwise", "--kv-transfer-mode", "pull"), "--kv-transfer-mode"),
        (("--decode-routing-policy", "NOBODY"), '--decode-routing-policy is "NOBODY"'),
    ],
)
def test_options_are_checked(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    path = written(tmp_path, cluster([instance("prefill"), instance("decode")]))
    with pytest.raises(InputError, match=None) as caught:
        run(path, *arguments)
    assert words in str(caught.value)


def test_an_option_without_roles_is_refused() -> None:
    document = json.dumps(cluster([instance(None)]))
    with pytest.raises(InputError, match=r"no instance of .* has a pd_type"):
        resolve(parse_cluster(document), EngineOverrides(), kv_transfer="layerwise")


def test_what_fits_nowhere_is_named(tmp_path: Path) -> None:
    instances = [instance("prefill"), instance("decode", num_gpu_blocks_override=10)]
    results = run(written(tmp_path, cluster(instances)))
    assert set(results.invariants.values()) == {"ok"}
    fits = results.workload.input_tokens + results.workload.output_tokens - 1 <= 9 * 16
    assert ((results.requests.status == 4) == ~fits).all()


def test_the_worked_example_of_the_page() -> None:
    """Times in ms after the arrival, as docs/explanation/disaggregation.md gives them."""
    page = (ROOT / "docs" / "explanation" / "disaggregation.md").read_text(encoding="utf-8")
    example = ROOT / "cluster_config" / "h100_llama31_8b_pd.json"
    one = "synthetic:n=1,rate=1,input=fixed:1000,output=fixed:3,seed=1"
    results = run(example, "--cost-source", "roofline", trace=one)
    columns = {**vars(results.requests), **vars(results.kv_transfers)}
    rows = re.findall(r"^\| ([\d.]+) \| .* \| (`.*`) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for time, names in rows:
        first = names.split("`")[1]
        assert f"{(columns[first][0] - columns['arrival_ps'][0]) / 1e9:.3f}" == time, first
    layers = run(example, "--cost-source", "roofline", "--kv-transfer", "layerwise", trace=one)
    for name, value in (
        ("kv_landed_ps", vars(layers.kv_transfers)),
        ("first_token_ps", vars(layers.requests)),
    ):
        assert f"at\n{(value[name][0] - layers.requests.arrival_ps[0]) / 1e9:.3f}" in page.replace(
            "at ", "at\n"
        ), name
