"""The silicon database: measured rows verbatim, everything else within light and near an
independent profile.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.core import Provenance
from llmsim.costs import CompiledCosts, EngineVersions, compile_costs
from llmsim.costs.experts.routing import parse_expert_routing
from llmsim.costs.explain import decode_us, prefill_us
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.sources.silicon.database import read_columns, version_key
from llmsim.costs.sources.silicon.gemm import GemmTable, load_gemm
from llmsim.model import Dtypes
from tests.costs.builders import PERF, SYSTEMS, database, needs_database, request, split_grid
from tests.shared_data import shared

pytestmark = needs_database


@pytest.fixture(scope="module")
def pro() -> CompiledCosts:
    return compile_costs(request(source="silicon"))


@pytest.fixture(scope="module")
def gemms() -> GemmTable:
    peak_rates = peak_rates_of(request())
    assert peak_rates is not None
    table = load_gemm(
        database("RTXPRO6000").tables("gemm"),
        ("bfloat16",),
        2.0,
        peak_rates.peak("bf16"),
        peak_rates,
    )
    assert table is not None
    return table


@pytest.mark.parametrize("hardware", SYSTEMS)
def test_every_card_of_the_list_compiles_from_its_own_tables(hardware: str) -> None:
    costs = compile_costs(request(hardware=hardware, source="silicon"))
    assert costs.floor.enforce and not costs.link_collectives
    own = [source for source in costs.sources if source != "streaming kernels by the data sheet"]
    assert all(
        "aiconfigurator-core" in source and database(hardware).system in source for source in own
    )
    assert (
        len(own) == len(costs.sources) or hardware == "A100"
    )  # the others have a table of fp8 scaling
    assert {"qkv_proj", "lm_head", "sampler"} <= {op.name for op in costs.ops}
    for op in costs.ops:
        assert op.ps[0] == 0 and (op.ps[1:] > 0).all() and len(op.ps) == len(op.provenance)


def test_the_newest_version_of_vllm_comes_first() -> None:
    labels = [table.label for table in database("H200").tables("moe")]
    assert labels[0].endswith("vllm 0.24.0 moe") and labels[1].endswith("vllm 0.19.0 moe")
    assert version_key("0.24.0") > version_key("0.9.1") > version_key("0.9.0")
    assert version_key("1.3.0") > version_key("1.3.0rc20") > version_key("1.3.0rc5")
    assert version_key("0.5.6.post2") > version_key("0.5.6")


def test_a_measured_gemm_is_its_row(pro: CompiledCosts) -> None:
    rows = read_columns(
        database("RTXPRO6000").tables("gemm")[0].path, ["gemm_dtype", "m", "n", "k", "latency"]
    )
    shape = (rows["gemm_dtype"] == "bfloat16") & (rows["n"] == 4096) & (rows["k"] == 4096)
    op = next(op for op in pro.ops if op.name == "o_proj")
    checked = 0
    for m, latency_ms in zip(rows["m"][shape], rows["latency"][shape], strict=True):
        if m <= 2048 and op.provenance[m] == Provenance.MEASURED:
            assert op.ps[m] == round(float(latency_ms) * 1e9)
            checked += 1
    assert checked > 40


def test_shapes_between_measured_ones_are_predicted_closely(gemms: GemmTable) -> None:
    """Leave one out: every inner (n, k) is predicted from its neighbours and compared with its own
    row (median 4 %).
    """
    counts = np.array([1.0, 16.0, 128.0, 512.0, 2048.0])
    errors = []
    for i in range(8, 19, 2):
        for j in range(8, 19, 2):
            keep_n = np.arange(len(gemms.n_axis)) != i
            keep_k = np.arange(len(gemms.k_axis)) != j
            without = replace(
                gemms,
                n_axis=gemms.n_axis[keep_n],
                k_axis=gemms.k_axis[keep_k],
                us=gemms.us[:, keep_n][:, :, keep_k],
            )
            n, k = int(gemms.n_axis[i]), int(gemms.k_axis[j])
            predicted, _, _ = without.curve_us(n, k, counts)
            measured, _, _ = gemms.curve_us(n, k, counts)
            errors.append(np.abs(predicted / measured - 1))
    assert float(np.median(errors)) < 0.06 and float(np.quantile(errors, 0.9)) < 0.20


@settings(max_examples=200, deadline=None)
@given(n=st.floats(3, 18.2), k=st.floats(3, 15.8), m=st.integers(1, 40_000))
def test_no_gemm_of_any_shape_beats_the_data_sheet(
    gemms: GemmTable, n: float, k: float, m: int
) -> None:
    wide, deep = int(2**n), int(2**k)
    us, marks, _ = gemms.curve_us(wide, deep, np.array([0.0, float(m)]))
    weights_us = 2.0 * wide * deep / gemms.peak_rates.memory_bandwidth_bytes_per_s * 1e6
    assert us[1] >= weights_us * (1 - 1e-9)
    assert marks[1] in set(Provenance)


def test_weights_that_were_measured_in_the_cache_are_read_from_memory(gemms: GemmTable) -> None:
    """The table of this card has rows beyond its bandwidth; none of them survives."""
    bandwidth = gemms.peak_rates.memory_bandwidth_bytes_per_s
    beaten = 0
    for i, n in enumerate(gemms.n_axis):
        for j, k in enumerate(gemms.k_axis):
            lower_bound_us = 2.0 * n * k / bandwidth * 1e6
            beaten += int((gemms.us[:, i, j] < lower_bound_us).sum())
            us, _, _ = gemms.curve_us(int(n), int(k), np.array([0.0, 1.0, 4.0, 16.0]))
            assert (us[1:] >= lower_bound_us * (1 - 1e-9)).all()
    assert beaten > 100


@pytest.mark.parametrize("hardware", ["H100", "H200", "B200", "GB200", "L40S", "RTXPRO6000"])
def test_half_the_bytes_take_no_longer_where_matrices_are_large(hardware: str) -> None:
    """Block-scaled fp8 beside bfloat16, at batches that stream their weights; a small matrix is not
    as long as a large one: no row is the time of a host.
    """
    peak_rates = peak_rates_of(request(hardware=hardware))
    assert peak_rates is not None
    tables, counts = database(hardware).tables("gemm"), np.arange(257, dtype=np.float64)
    narrow = load_gemm(tables, ("fp8_block",), 1.0, peak_rates.peak("fp8"), peak_rates)
    wide = load_gemm(tables, ("bfloat16",), 2.0, peak_rates.peak("bf16"), peak_rates)
    assert narrow is not None and wide is not None
    large, small = (narrow.curve_us(size, size, counts)[0][1:] for size in (8192, 2048))
    assert (small < 0.7 * large).all()
    assert large.mean() < wide.curve_us(8192, 8192, counts)[0][1:].mean()


def test_narrow_weights_that_do_not_pay_are_noted() -> None:
    def note(dtype: str) -> list[str]:
        found = compile_costs(
            request(hardware="H100", dtypes=Dtypes(weight=dtype), source="silicon")
        ).notes
        return [text for text in found if "times as long as with bfloat16" in text]

    assert any("matrices with int8 weights take" in text for text in note("int8"))
    assert not note("fp8") and not note("bf16")


def test_a_card_that_was_measured_cold_keeps_every_row() -> None:
    costs = compile_costs(request(hardware="H100", source="silicon"))
    for op in costs.ops:
        matrix = op.name.endswith(("proj", "lm_head"))
        assert (
            not (matrix and Provenance.SCALED in op.provenance)
            and "streaming rate" not in op.source
        )


def test_experts_measured_in_the_cache_are_raised_to_the_speed_of_light() -> None:
    asked = request("Qwen/Qwen3-30B-A3B", source="silicon")
    op = next(op for op in asked.operators if op.kind == "moe")
    moe = next(op for op in compile_costs(asked).ops if op.name == "moe")
    least_ps = op.weight_bytes * 8 // 128 * 10**12 / 1_597e9
    assert moe.ps[1] >= least_ps and moe.provenance[1] == Provenance.ANALYTIC
    assert moe.source.endswith("raised to the speed of light")


def test_silicon_agrees_with_an_independent_profile_of_the_same_card(pro: CompiledCosts) -> None:
    """No number of the profile is in the silicon source (its two constants of the card play no part
    here), but the form of the rules for cached prefill and cold KV was chosen with this profile in
    sight: it is no blind test.
    """
    bundle = compile_costs(request(source="bundle", profile_dirs=(shared(PERF),)))
    names = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    for tokens in (1, 16, 128, 512, 2048):
        ours, theirs = (
            sum(int(op.ps[tokens]) for op in c.ops if op.name in names) for c in (pro, bundle)
        )
        assert ours == pytest.approx(theirs, rel=0.04), tokens
    for n, kv in ((1, 1024), (8, 1024), (32, 512), (32, 1200), (64, 512), (128, 1300), (128, 4096)):
        ours_us, theirs_us = decode_us(pro.attention, n, kv), decode_us(bundle.attention, n, kv)
        assert ours_us == pytest.approx(theirs_us, rel=0.16), (n, kv)
    for new, cached in ((512, 0), (2048, 0), (128, 4096), (512, 2048), (1024, 16384), (2048, 2048)):
        ours_us, theirs_us = (
            prefill_us(pro.attention, new, cached),
            prefill_us(bundle.attention, new, cached),
        )
        assert ours_us == pytest.approx(theirs_us, rel=0.12), (new, cached)


def test_cold_kv_of_a_card_that_was_measured_cold(pro: CompiledCosts) -> None:
    """Decodes beyond the cache agree with an engine's own steps on the card; a repeated call does
    not.
    """
    text = (
        shared(f"{PERF}/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1/attention.csv")
        .read_text()
        .splitlines()[1:]
    )
    warm = compile_costs(request(source="silicon", cold_kv=False))
    errors: dict[str, list[float]] = {"cold": [], "warm": []}
    for chunk, prefix, n, kv, us in (line.split(",") for line in text):
        if (
            chunk == prefix == "0"
            and 16 <= int(n) <= 128
            and 1 << 26 <= int(n) * int(kv) * 4096 <= 1 << 30
        ):
            for name, costs in (("cold", pro), ("warm", warm)):
                errors[name].append(decode_us(costs.attention, int(n), int(kv)) / float(us) - 1)
    assert len(errors["cold"]) > 20
    assert abs(float(np.median(errors["cold"]))) < 0.01
    assert max(map(abs, errors["cold"])) < 0.06
    assert float(np.median(errors["warm"])) < -0.05


def test_the_cache_is_written_once_per_layer_and_token() -> None:
    """A fixed part for few tokens, then by the bytes: half the KV heads take what half the tokens
    do.
    """
    whole, half = (
        next(
            op
            for op in compile_costs(request(hardware="H100", source="silicon", tp=tp)).ops
            if op.name == "kv_write"
        )
        for tp in (1, 2)
    )
    assert (whole.repeat, whole.feature, whole.ps[0]) == (32, "tokens", 0)
    assert 1.5e6 < whole.ps[1] < 3e6
    assert (np.diff(whole.ps[1:]) >= 0).all()
    assert half.ps[2048] == whole.ps[1024]
    assert "kv_write" not in {
        op.name for op in compile_costs(request("deepseek-ai/DeepSeek-V3", "H200", tp=8)).ops
    }


def test_experts_are_chosen_once_per_moe_layer() -> None:
    choice = next(
        op for op in compile_costs(request("Qwen/Qwen3-30B-A3B", "H100", source="silicon")).ops
        if op.name == "expert_choice"
    )  # fmt: skip
    assert (choice.repeat, choice.feature) == (48, "tokens")
    assert 2e6 < choice.ps[1] <= choice.ps[2048] < 5e6
    assert "expert_choice" not in {op.name for op in compile_costs(request(source="silicon")).ops}


def test_decode_is_never_faster_than_reading_cold_kv(pro: CompiledCosts) -> None:
    split = split_grid(pro.attention)
    n, kv = np.meshgrid(split.n_axis, split.kv_axis, indexing="ij")
    kv_bytes = n * (kv + 1) * 4096
    assert (
        split.decode_ps >= kv_bytes * 1e12 / 1_597e9
    ).all()  # data sheet; the measured cold rate is lower still
    assert (np.diff(split.decode_ps, axis=0) >= 0).all()


@settings(max_examples=25, deadline=None)
@given(
    hardware=st.sampled_from(("A100", "H100", "B200", "L40S", "RTXPRO6000", "RTX4090", "TPU-v6e")),
    tp=st.sampled_from((1, 2, 4)),
    heads=st.sampled_from((8, 16, 20, 28, 40)),
    group=st.sampled_from((1, 2, 4)),
    head_dim=st.sampled_from((64, 96, 128)),
    hidden=st.integers(8, 80).map(lambda x: x * 128),
    inter=st.integers(8, 200).map(lambda x: x * 128),
    vocab=st.integers(100, 2000).map(lambda x: x * 128),
    kv=st.sampled_from(("bf16", "fp8")),
)
def test_no_model_of_any_shape_beats_the_data_sheet(
    hardware: str,
    tp: int,
    heads: int,
    group: int,
    head_dim: int,
    hidden: int,
    inter: int,
    vocab: int,
    kv: str,
) -> None:
    model = replace(
        request().model,
        num_attention_heads=heads,
        num_key_value_heads=heads // group,
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=inter,
        vocab_size=vocab,
    )
    try:
        asked = request(model, hardware, tp=tp, dtypes=Dtypes(kv=kv), max_tokens=1024, max_seqs=64)
    except InputError:  # a head count that this tp cannot split
        return
    costs = compile_costs(asked)
    floor = costs.floor
    assert floor.enforce
    body = sum(op.repeat * op.ps.astype(object) for op in costs.ops if op.feature == "tokens")
    head = sum(op.repeat * op.ps.astype(object) for op in costs.ops if op.feature == "sequences")
    split = split_grid(costs.attention)
    for tokens in (1, 7, 64, 1000):
        attention_ps = (
            int(decode_us(costs.attention, min(tokens, 64), 5000) * 1e6) * costs.attention.repeat
        )
        kv_tokens = min(tokens, 64) * 5000
        one_layer = kv_tokens * floor.kv_bytes_per_token // costs.attention.repeat
        kv_bytes = (
            kv_tokens * floor.kv_bytes_per_token if one_layer > floor.last_level_cache_bytes else 0
        )
        least = (floor.weight_bytes_read + kv_bytes) * 10**12 // floor.memory_bandwidth_bytes_per_s
        assert body[tokens] + head[min(tokens, 64)] + attention_ps >= least
        assert body[tokens] >= tokens * floor.flops_per_token * 10**12 // max(
            floor.peak_flops_per_s, 1
        )
    assert (split.prefill_ps > 0).all() and (np.diff(split.prefill_ps, axis=1) >= 0).all()


def test_an_unmeasured_head_shape_is_scaled_and_says_so() -> None:
    model = replace(request().model, num_attention_heads=56, num_key_value_heads=8, head_dim=128)
    costs = compile_costs(request(model, "H100", source="silicon"))
    assert "scaled from heads=" in costs.attention.source
    split = split_grid(costs.attention)
    assert set(np.unique(split.prefill_provenance[:, 0])) <= {
        Provenance.SCALED, Provenance.EXTRAPOLATED, Provenance.ANALYTIC
    }  # fmt: skip


def test_experts_and_their_routing_are_named() -> None:
    costs = compile_costs(request("Qwen/Qwen3-30B-A3B", "H100", tp=2, ep=2, source="silicon"))
    moe = next(op for op in costs.ops if op.name == "moe")
    assert "balanced routing" in moe.source and moe.provenance[128] == Provenance.MEASURED
    uneven = compile_costs(
        request(
            "Qwen/Qwen3-30B-A3B",
            "H100",
            source="silicon",
            expert_routing=parse_expert_routing("POWER_LAW"),
        )
    )
    skewed = next(op for op in uneven.ops if op.name == "moe")
    assert (
        "power_law_1.2 routing" in skewed.source
        and (skewed.ps != moe.ps).any()
        and skewed.sampled is None
    )
    scaled = replace(request("Qwen/Qwen3-30B-A3B").model, moe_intermediate_size=1000)
    costs = compile_costs(request(scaled, "H100", source="silicon"))
    assert "scaled from MoeShape" in next(op for op in costs.ops if op.name == "moe").source


def test_collectives_use_graph_rows_then_eager_rows_and_count_elements() -> None:
    costs = compile_costs(request("meta-llama/Llama-3.1-70B", "H100", tp=4, source="silicon"))
    op = next(op for op in costs.ops if op.name == "all_reduce")
    assert "graph up to 512 tokens" in op.source and op.ps[513] > op.ps[512]
    rows = read_columns(database("H100").tables("all_reduce")[0].path,
                        ["num_gpus", "message_size", "latency", "backend"])  # fmt: skip
    row = (
        (rows["num_gpus"] == 4)
        & (rows["message_size"] == 8192 * 64)
        & (rows["backend"] == "vllm_graph")
    )
    assert op.ps[64] == round(float(rows["latency"][row][0]) * 1e9)  # 64 tokens x 8192 elements


def test_collectives_without_a_table_go_to_the_links() -> None:
    assert compile_costs(request(hardware="H100", tp=2, collectives="links")).link_collectives
    assert compile_costs(request(hardware="RTX4090", tp=2)).link_collectives
    assert compile_costs(request(hardware="H100", tp=2, source="roofline")).link_collectives
    assert not compile_costs(request(hardware="H100", tp=2)).link_collectives
    with pytest.raises(InputError, match='use collectives "links"'):
        compile_costs(request(hardware="RTX4090", tp=2, collectives="measured"))


def test_what_the_database_lacks_is_an_error_or_comes_from_elsewhere() -> None:
    with pytest.raises(InputError, match='no tables for the hardware "RTX4090"'):
        compile_costs(request(hardware="RTX4090", source="silicon"))
    costs = compile_costs(request(hardware="A100", dtypes=Dtypes(weight="fp8"), source="silicon"))
    assert any("qkv_proj" in note and "not in the silicon source" in note for note in costs.notes)


@pytest.mark.parametrize(
    ("hardware", "tp", "slow"), [("L40S", 8, True), ("L40S", 2, False), ("H100", 8, False)]
)
def test_measured_collectives_of_a_machine_with_slow_links_are_said(
    hardware: str, tp: int, slow: bool
) -> None:
    notes = compile_costs(request(hardware=hardware, tp=tp)).notes
    (note,) = [note for note in notes if "take measured times" in note]
    assert ("that machine's links are slow" in note) == slow
    assert ('"peer_to_peer": true in the instance' in note) == slow


@pytest.mark.parametrize(
    ("model", "hardware", "changes", "slower"),
    [
        ("openai/gpt-oss-20b", "A100", {}, True),
        ("openai/gpt-oss-20b", "A100", {"engine": EngineVersions(framework="sglang")}, False),
        ("openai/gpt-oss-20b", "H100", {}, False),
        ("Qwen/Qwen3-14B", "A100", {}, False),
    ],
)
def test_prompts_with_sinks_run_on_triton_where_flash_attention_has_none(
    model: str, hardware: str, changes: dict[str, Any], *, slower: bool
) -> None:
    """On an A100 some 35 TFLOP/s: twice the time of FlashAttention 2 for whole token budgets."""
    found = [
        compile_costs(request(model, hardware, source="silicon", sink_attention=on, **changes))
        for on in (True, False)
    ]
    triton, flash = (split_grid(one.attention).prefill_ps[-1, -1] for one in found)
    assert (triton > 1.5 * flash) == slower and triton >= flash
    assert ("sinks on Triton" in found[0].attention.source) == slower
    assert "sinks on Triton" not in found[1].attention.source
