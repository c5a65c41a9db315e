"""CUDA-graph modes: what replays, what it is padded to, whose times it takes, and what the host's
launches cost.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim import _native
from llmsim.cli import run_main
from llmsim.config import EngineOverrides, load_cluster, resolve
from llmsim.config.engine.profile import load_profile
from llmsim.config.errors import InputError
from llmsim.costs import CostRequest
from llmsim.costs.source import Curve
from llmsim.costs.sources.bundle.eager_and_graph import both_families, by_family
from llmsim.lowering import LoweringOptions, lower
from llmsim.lowering.host.cuda_graphs import kernels_of, scaled_dtypes
from llmsim.lowering.types import LoweredGroup
from llmsim.model import (
    Layout,
    load_hardware,
    load_model,
    memory_ledger,
    operators,
    resolve_dtypes,
)
from llmsim.scheduling.conformance.vllm.live import installed_version
from tests.costs.builders import request

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
NONE, PIECEWISE, FULL = _native.GraphMode.NONE, _native.GraphMode.PIECEWISE, _native.GraphMode.FULL
EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7}


def lowered(**engine: Any) -> LoweredGroup:
    deployment = resolve(load_cluster(CLUSTER), EngineOverrides(**engine))
    return lower(deployment, LoweringOptions(cost_source="roofline")).groups[0]


def graphs(group: LoweredGroup) -> Any:
    return group.program.graph


@pytest.mark.parametrize(
    ("mode", "decodes", "mixed", "many_decodes"),
    [
        ("NONE", (NONE, 5), (NONE, 13), (NONE, 98)),
        ("PIECEWISE", (PIECEWISE, 8), (PIECEWISE, 16), (PIECEWISE, 104)),
        ("FULL", (FULL, 8), (FULL, 16), (FULL, 104)),
        ("FULL_DECODE_ONLY", (FULL, 8), (NONE, 13), (NONE, 98)),
        ("FULL_AND_PIECEWISE", (FULL, 8), (PIECEWISE, 16), (PIECEWISE, 104)),
    ],
)
def test_each_mode_has_its_graphs(mode: str, decodes: Any, mixed: Any, many_decodes: Any) -> None:
    """98 decodes of at most 100: their size, 104, is no full graph of decodes."""
    group = lowered(cudagraph_mode=mode, max_num_seqs=100)
    assert graphs(group)([1] * 5) == decodes
    assert graphs(group)([1] * 5 + [8]) == mixed
    assert graphs(group)([1] * 98) == many_decodes
    assert graphs(group)([1000]) == (NONE, 1000)
    assert (group.engine.cuda_graph_sizes == ()) == (mode == "NONE")


def test_sglangs_prompts_and_decodes_have_graphs_of_their_own() -> None:
    """SGLang 0.5.10 on one H100: decodes of at most 256 sequences, prompts of at most 8,192 tokens;
    decodes beyond replay none of the prompts' graphs.
    """
    group = lowered(engine_profile="sglang-0.5.10", scheduler="sglang")
    assert graphs(group)([1] * 9) == (FULL, 12)
    assert graphs(group)([1] * 256) == (FULL, 256)
    assert graphs(group)([1] * 257) == (NONE, 257)
    assert graphs(group)([1] * 9 + [8]) == (PIECEWISE, 20), "decodes that a chunk takes along"
    assert graphs(group)([4_100]) == (PIECEWISE, 4_608)
    before = lowered(engine_profile="sglang-0.5", scheduler="sglang")
    assert graphs(before)([1] * 9) == (FULL, 12)
    assert graphs(before)([4_100]) == (NONE, 4_100)


def test_sglang_leaves_room_instead_of_profiling_a_batch() -> None:
    ledger = lowered(engine_profile="sglang-0.5", scheduler="sglang").ledger
    labels = " ".join(label for label, _ in ledger.lines)
    assert "sampler" not in labels and "CUDA graphs" not in labels and "activations" not in labels


def test_tokens_of_a_published_server_of_sglang() -> None:
    """Qwen3-235B in FP8 on four H100 with --mem-fraction-static 0.93: 367,404 tokens
    (vllm-project/vllm, issue 21348).
    """
    model = load_model("Qwen/Qwen3-235B-A22B-FP8")
    hardware = load_hardware("H100")
    assert hardware is not None
    ledger = memory_ledger(
        model,
        Layout(4, 1),
        resolve_dtypes(model, None, "auto"),
        device_bytes=hardware.memory_bytes,
        utilization=0.93,
        max_num_seqs=2048,
        max_num_batched_tokens=8192,
        block_size=1,
        rules=load_profile("sglang-0.5").memory,
    )
    assert ledger.num_blocks == pytest.approx(367_404, rel=0.05)


def test_with_drafts_a_uniform_decode_has_all_of_them() -> None:
    group = lowered(cudagraph_mode="FULL_DECODE_ONLY", speculative_config=EAGLE)
    assert graphs(group)([4] * 3) == (FULL, 16), "a multiple of 8, rounded up to one of 4"
    assert graphs(group)([4, 4, 3]) == (NONE, 11)
    assert graphs(group)([1] * 4) == (NONE, 4)


def test_memory_charges_the_graphs_of_the_mode() -> None:
    def estimate(mode: str) -> int:
        lines = lowered(cudagraph_mode=mode).ledger.lines
        return -sum(size for label, size in lines if "CUDA graphs" in label)

    none, piecewise, decode, both = map(
        estimate, ("NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
    )
    assert none == 0 < piecewise == decode < both


def test_a_step_without_a_graph_is_no_faster_than_its_launches() -> None:
    """A decode of one sequence: 28 us for each kernel of the model's operators, against what the
    operators take.
    """
    fast, slow = lowered(), lowered(enforce_eager=True, launch_ns=1e6)
    launches = sum(op.repeat * kernels_of(op) for op in slow.operators)
    assert launches == sum(op.repeat for op in slow.operators) + 32, (
        "attention also writes the cache"
    )
    assert slow.program.step_ps([(1, 100)]) == launches * 10**9
    assert lowered(enforce_eager=True).engine.launch_ps == 28_000_000
    assert (
        lowered(cudagraph_mode="PIECEWISE", launch_ns=1e6).program.step_ps([(1, 100)])
        == (3 * 32 + 1) * 10**9
    )
    assert lowered(launch_ns=1e6).program.step_ps([(1, 100)]) == fast.program.step_ps([(1, 100)])
    assert lowered(enforce_eager=True, launch_ns=0).program.step_ps(
        [(1, 100)]
    ) == fast.program.step_ps([(1, 100)])


@pytest.mark.parametrize(
    ("engine", "gemm", "experts"),
    [("sglang-0.5", 2, 9), ("vllm-0.24", 1, 7), ("vllm-0.8", 2, 9)],
)
def test_inputs_of_narrow_weights_are_scaled_by_kernels_of_their_own(
    engine: str, gemm: int, experts: int
) -> None:
    """Unless a compiler makes that part of the operator before."""
    model = load_model("Qwen/Qwen3-30B-A3B-FP8")
    costs = request(model, "H200", compiles_scaling=load_profile(engine).compiles_scaling)
    scaled = scaled_dtypes(costs)
    kernels = {
        op.name: kernels_of(op, scaled)
        for op in operators(model, Layout(1, 1), resolve_dtypes(model, None, "auto"))
    }
    assert kernels["qkv_proj"] == kernels["o_proj"] == gemm
    assert kernels["moe"] == experts
    assert kernels["moe_gate"] == kernels["lm_head"] == 1, "in bf16"


def test_inputs_of_mxfp4_experts_stay_wide() -> None:
    assert scaled_dtypes(request(load_model("openai/gpt-oss-20b"))) == frozenset()
    assert scaled_dtypes(request(load_model("nvidia/Kimi-K2.5-NVFP4"))) == {"fp4"}


def test_layers_of_experts_take_the_host_longer_where_no_graph_replays_them() -> None:
    """vLLM's Python code around experts, 48 layers of them, beside their launches."""

    def moe(**engine: Any) -> LoweredGroup:
        cluster = load_cluster(CLUSTER.with_name("h100_qwen3_30b_a3b.json"))
        deployment = resolve(cluster, EngineOverrides(launch_ns=0, prepare_ns=0, **engine))
        return lower(deployment, LoweringOptions(cost_source="roofline")).groups[0]

    none, slow = moe(fused_moe_ns=0).program, moe(fused_moe_ns=1e6).program
    assert slow.step_ps([(1000, 0)]) == 48 * 10**9 > none.step_ps([(1000, 0)])
    for replayed in ([(500, 0)], [(1, 100)]):
        assert slow.step_ps(replayed) == none.step_ps(replayed)
    assert moe().engine.fused_moe_ps == 200_000_000
    assert moe(enforce_eager=True).engine.fused_moe_ps == 0, "eager launches have it"


def test_a_launched_layer_of_experts_takes_what_the_constant_was_taken_from() -> None:
    """0.56 ms for a layer of Qwen3-30B-A3B without graphs (sources of the engine profile), from its
    own kernels.
    """
    model = load_model("Qwen/Qwen3-30B-A3B-Instruct-2507")
    layers = [
        op
        for op in operators(model, Layout(1, 1), resolve_dtypes(model, None, "auto"))
        if op.repeat > 1
    ]
    kernels = sum(op.repeat * kernels_of(op) for op in layers) / model.num_layers
    assert 0.85 * 0.56 <= 0.028 * kernels <= 1.15 * 0.56


def run(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    trace = "synthetic:n=30,rate=10,input=fixed:700,output=fixed:40,seed=1"
    arguments = [
        "--cluster-config",
        str(CLUSTER),
        "--dataset",
        trace,
        "--cost-source",
        "roofline",
        "--json",
    ]
    assert run_main([*arguments, *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_count_their_graphs_and_what_launching_added(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual, eager = run(capsys), run(capsys, "--enforce-eager")
    assert usual["graphs"]["full_graph"] > 0 and usual["graphs"]["without_graph"] > 0
    assert (
        sum(usual["graphs"][kind] for kind in ("full_graph", "piecewise_graph", "without_graph"))
        == usual["steps"]
    )
    assert (eager["graphs"]["full_graph"], eager["graphs"]["without_graph"]) == (0, eager["steps"])
    assert eager["mean_tpot_ms"] > 1.1 * usual["mean_tpot_ms"]
    (launches,) = [row for row in eager["sources"]["operators"] if row["operator"] == "launches"]
    assert eager["graphs"]["launching_s"] > 0 and "28000 ns of the host" in launches["source"]
    assert set(eager["invariants"].values()) == {"ok"}
    few = run(capsys, "--cudagraph-mode", "FULL_DECODE_ONLY", "--cudagraph-capture-sizes", "1,2")
    assert few["graphs"]["piecewise_graph"] == 0 < few["graphs"]["full_graph"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enforce_eager": True, "cudagraph_mode": "FULL"}, "enforce_eager is true"),
        ({"enforce_eager": True, "cuda_graph_sizes": (1,)}, "nothing is captured"),
        ({"cudagraph_mode": "NONE", "cuda_graph_sizes": (1,)}, "cudagraph_mode is NONE"),
        ({"cudagraph_mode": "none"}, "--cudagraph-mode is"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lowered(**options)


def test_a_bundle_with_both_families_gives_each_step_its_own(tmp_path: Path) -> None:
    table = tmp_path / "dense.csv"
    header = "layer,tokens,time_us,eager_us,graph_us\n"
    table.write_text(header + "qkv_proj,1,2,9,2\nqkv_proj,101,12,19,12\n", encoding="utf-8")
    points, graph, eager = both_families(table, "tokens")["qkv_proj"]
    assert (points.tolist(), graph.tolist(), eager.tolist()) == ([1, 101], [2, 12], [9, 19])
    table.write_text(header + "qkv_proj,1,2,2,\n", encoding="utf-8")
    assert both_families(table, "tokens") == {}, "a device without graphs"
    table.write_text("layer,tokens,time_us\nqkv_proj,1,2\n", encoding="utf-8")
    assert both_families(table, "tokens") == {}

    def curve(ps: int) -> Curve:
        return Curve(np.full(11, ps, np.int64), np.zeros(11, np.uint8), "dense.csv")

    assert by_family(curve(1), curve(2), 4).ps.tolist() == [1] * 5 + [2] * 6
    assert "replayed up to 4 tokens, then launched" in by_family(curve(1), curve(2), 4).source
    assert by_family(curve(1), curve(2), 0).ps.tolist() == [2] * 11
    assert by_family(curve(1), curve(2), 10).ps.tolist() == [1] * 11
    defaults = dict(
        zip(
            CostRequest.__struct_fields__[::-1], CostRequest.__struct_defaults__[::-1], strict=False
        )
    )
    assert defaults["cuda_graph_sizes"] == ()


@pytest.mark.skipif(
    installed_version() is None, reason="vLLM is not installed (extra llmsim[vllm])"
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("seqs", "drafts"), [(100, 0), (7, 0), (64, 3), (100, 2), (1024, 0)])
def test_dispatch_is_vllm_s_own(mode: str, seqs: int, drafts: int, tmp_path: Path) -> None:
    from llmsim.scheduling.conformance.vllm.platform import prepare, write_model

    prepare()
    from vllm.config import CUDAGraphMode
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    speculative = (
        {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 3}
        if drafts
        else None
    )
    config = EngineArgs(
        model=write_model(tmp_path),
        skip_tokenizer_init=True,
        load_format="dummy",
        max_num_seqs=seqs,
        max_num_batched_tokens=2048,
        max_model_len=4096,
        speculative_config=speculative,
        compilation_config={"cudagraph_mode": mode},
    ).create_engine_config(UsageContext.OPENAI_API_SERVER)
    chosen = CUDAGraphMode[mode]
    if chosen.decode_mode() == CUDAGraphMode.FULL and drafts:
        config.compilation_config.adjust_cudagraph_sizes_for_spec_decode(1 + drafts, 1)
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(chosen, 1 + drafts)
    ours: dict[str, Any] = {
        "cudagraph_mode": mode,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 2048,
    }
    if drafts:
        ours["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": drafts,
            "acceptance_rate": 0.5,
        }
    group = lowered(**ours)
    assert list(group.engine.cuda_graph_sizes) == (
        config.compilation_config.cudagraph_capture_sizes or []
    )
    for count in range(1, seqs + 1, 1 if seqs < 200 else 31):
        for tokens in ([1 + drafts] * count, [2 + drafts] + [1] * (count - 1)):
            uniform = len(set(tokens)) == 1 and tokens[0] == 1 + drafts
            theirs, descriptor = dispatcher.dispatch(sum(tokens), uniform_decode=uniform)
            found, padded = graphs(group)(tokens)
            assert (found.name, padded) == (theirs.name, descriptor.num_tokens), (tokens, uniform)
