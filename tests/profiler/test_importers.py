"""Importers: each published schema, from samples written here; what is read, what is left out, and
what it becomes.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmsim.config.errors import InputError
from llmsim.costs import CompiledCosts, compile_costs
from llmsim.costs.explain import decode_us, prefill_us
from llmsim.costs.sources.external.source import ExternalSource
from llmsim.costs.sources.external.table import read_external
from llmsim.model import load_model
from llmsim.profiler.cli.command import main
from llmsim.profiler.importing.links import fitted
from llmsim.profiler.importing.run import import_profiles
from llmsim.profiler.importing.sources import open_table
from llmsim.profiler.importing.target import Target
from tests.costs.builders import LLAMA, attention_us, request, write_bundle, write_csv
from tests.costs.bundle.test_older_bundle import (
    DENSE,
    EXPERTS,
    area,
    decode_time,
    times_us,
    write_older,
)
from tests.shared_data import shared

PHI = "microsoft/Phi-mini-MoE-instruct"
STATS = ("min", "max", "mean", "median", "std")
LINEAR_OPS = (
    "emb",
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
LINEAR_KEYS = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "vocab_size",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)


def target(tmp_path: Path, model: str = LLAMA, tp: int = 1) -> Target:
    return Target(
        load_model(model),
        "Card",
        tp,
        "bf16",
        tmp_path / "out",
        max_tokens=2048,
        max_seqs=128,
        max_kv=4096,
    )


def compiled(
    tmp_path: Path, model: str = LLAMA, tp: int = 1, hardware: str = "Card", **changes: object
) -> CompiledCosts:
    roots = (tmp_path / "out",)
    return compile_costs(
        request(model, hardware=hardware, tp=tp, profile_dirs=roots, max_model_len=4096, **changes)
    )


def ms(value: float) -> list[float]:
    """min, max, mean, median, std as both projects write them; only the median is to be used."""
    return [value * 0.5, value * 9, value * 3, value, 0.1]


def linear_header(extra: Sequence[str] = ()) -> str:
    stats = [f"time_stats.{op}.{stat}" for op in LINEAR_OPS for stat in STATS]
    return ",".join([*stats, *LINEAR_KEYS, *extra])


def linear_row(
    tokens: int, tp: int = 1, scale: float = 1.0, head: tuple[int, ...] = (32, 8, 4096)
) -> list[object]:
    times = [scale * (index + 1) * tokens * 1e-3 for index in range(len(LINEAR_OPS))]
    return [
        *(cell for value in times for cell in ms(value)),
        *head,
        14336,
        128256,
        True,
        tokens,
        tp,
    ]


ATTENTION_OPS = (
    "attn_input_reshape",
    "attn_kv_cache_save",
    "attn_prefill",
    "attn_decode",
    "attn_output_reshape",
)
ATTENTION_KEYS = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "block_size",
    "num_tensor_parallel_workers",
    "max_model_len",
    "batch_size",
    "prefill_chunk_size",
    "kv_cache_size",
    "is_prefill",
    "attention_backend",
)


def attention_header(extra: Sequence[str] = ()) -> str:
    stats = [f"time_stats.{op}.{stat}" for op in ATTENTION_OPS for stat in STATS]
    return ",".join([*stats, *ATTENTION_KEYS, *extra])


def attention_row(batch: int, chunk: int, kv: int, us: float) -> list[object]:
    blank: list[object] = [""] * 5
    save, prefill = ms(1e-3), chunk > 0
    times = [
        *ms(0.0),
        *save,
        *(ms(us / 1e3) if prefill else blank),
        *(blank if prefill else ms(us / 1e3)),
        *ms(0.0),
    ]
    return [*times, 4096, 32, 8, 16, 1, 4096, batch, chunk, kv, prefill, "FLASH_ATTENTION"]


def attention_rows() -> list[list[object]]:
    prefills = [attention_row(1, q, k, area(q, k)) for q in (64, 512, 2048) for k in (0, 64, 2048)]
    return prefills + [
        attention_row(n, 0, k, decode_time(n, k)) for n in (1, 8, 128) for k in (64, 512, 2048)
    ]


def write_vidur(folder: Path) -> Path:
    rows = [linear_row(tokens) for tokens in (1, 16, 2048) for _ in range(2)]  # measured twice
    write_csv(
        folder / "mlp.csv",
        linear_header(),
        [*rows, linear_row(16, tp=2), linear_row(16, head=(64, 8, 8192))],
    )
    rows = [*attention_rows(), attention_row(4, 64, 0, 99.0)]
    write_csv(folder / "attention.csv", attention_header(), rows)
    return folder


def cost_us(costs: CompiledCosts, name: str, count: int) -> float:
    return next(float(op.ps[count]) for op in costs.ops if op.name == name) / 1e6


def test_vidurs_milliseconds_become_layers(tmp_path: Path) -> None:
    report, written = import_profiles([write_vidur(tmp_path / "vidur")], target(tmp_path))
    assert {path.name for path in written} == {"dense.csv", "attention.csv", "meta.yaml"}
    costs = compiled(tmp_path, group_memory_bandwidth_bytes_per_s=10**12)
    position = {op: index + 1 for index, op in enumerate(LINEAR_OPS)}
    assert cost_us(costs, "qkv_proj", 16) == pytest.approx(position["attn_pre_proj"] * 16)
    assert cost_us(costs, "down_proj", 2048) == pytest.approx(position["mlp_down_proj"] * 2048)
    norm = (position["input_layernorm"] + position["post_attention_layernorm"]) / 2 + position[
        "add"
    ]
    assert cost_us(costs, "layernorm", 16) == pytest.approx(norm * 16)
    assert decode_us(costs.attention, 8, 512) == pytest.approx(
        decode_time(8, 512) + 1.0
    )  # 1 us to save keys, values
    assert prefill_us(costs.attention, 512, 64) == pytest.approx(area(512, 64) + 1.0)
    text = "\n".join(report.lines())
    assert "num_tensor_parallel_workers is not 1" in text and "n_head is not 32" in text
    assert "prefills of several sequences" in text and "lm_head" in text


def test_mixed_batches_are_sums(tmp_path: Path) -> None:
    import_profiles([write_vidur(tmp_path / "vidur")], target(tmp_path))
    rows = list(csv.DictReader((target(tmp_path).folder / "attention.csv").open()))
    keys = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    times = {tuple(int(row[name]) for name in keys): float(row["time_us"]) for row in rows}
    assert len(times) == len(rows) and times[512, 64, 8, 512] == pytest.approx(
        times[512, 64, 0, 0] + times[0, 0, 8, 512], abs=1e-3
    )


def test_frontier_rows_are_chosen_by_kind_and_precision(tmp_path: Path) -> None:
    extra = ("measurement_type", "profiling_precision")
    rows: list[list[object]] = []
    for tokens in (1, 16, 2048):
        rows.append([*linear_row(tokens), "KERNEL_ONLY", "BF16"])
        rows.append([*linear_row(tokens, scale=5), "CUDA_EVENT", "BF16"])
        rows.append([*linear_row(tokens, scale=7), "KERNEL_ONLY", "FP8"])
    write_csv(tmp_path / "f" / "linear_op.csv", linear_header(extra), rows)
    mixed = [[*row, "KERNEL_ONLY", "BF16", False] for row in attention_rows()]
    mixed.append([*attention_row(3, 64, 64, 1.0), "KERNEL_ONLY", "BF16", True])
    write_csv(
        tmp_path / "f" / "attention.csv", attention_header((*extra, "is_true_mixed_batch")), mixed
    )
    report, _ = import_profiles([tmp_path / "f"], target(tmp_path))
    costs = compiled(tmp_path, group_memory_bandwidth_bytes_per_s=10**12)
    assert cost_us(costs, "o_proj", 16) == pytest.approx(5 * 16)
    text = "\n".join(report.lines())
    assert (
        "measurement_type is not KERNEL_ONLY" in text and "profiling_precision is not bf16" in text
    )
    assert "prefills and decodes together" in text


def test_frontier_experts_keep_what_their_tokens_touched(tmp_path: Path) -> None:
    model = load_model(PHI)
    parts = ("moe_gating_linear", "moe_gating_routing_topk", "moe_shuffling", "moe_grouped_gemm")
    keys = (
        "num_tokens",
        "num_experts",
        "expert_parallel_size",
        "router_topk",
        "hidden_dim",
        "expert_hidden_dim",
        "num_tensor_parallel_workers",
        "expert_utilization",
        "measurement_type",
    )
    header = ",".join(
        [f"time_stats.{part}.{stat}" for part in parts for stat in STATS] + list(keys)
    )

    def row(tokens: int, ep: int, used: float) -> list[object]:
        times = [cell for us in (1.0, 2.0, 3.0, 10.0 * tokens) for cell in ms(us / 1e3)]
        shape = (16, ep, 2, model.hidden_size, model.moe_intermediate_size)
        return [*times, tokens, *shape, 1, used, "CUDA_EVENT"]

    write_csv(
        tmp_path / "f" / "moe.csv", header, [row(1, 1, 2 / 16), row(64, 1, 1.0), row(64, 4, 1.0)]
    )
    write_csv(tmp_path / "f" / "linear_op.csv", linear_header(), [linear_row(t) for t in (1, 2048)])
    write_csv(tmp_path / "f" / "attention.csv", attention_header(), attention_rows())
    report, written = import_profiles([tmp_path / "f"], target(tmp_path, PHI))
    moe = next(path for path in written if path.name == "moe.csv")
    assert moe.read_text().splitlines()[1:] == ["1,2,15", "64,16,645"]
    assert "expert_parallel_size is not 1" in "\n".join(report.lines())


def test_a_collective_table_becomes_a_ring(tmp_path: Path) -> None:
    folder = write_vidur(tmp_path / "vidur")
    stats = ",".join(f"time_stats.all_reduce.{stat}" for stat in STATS)
    header = f",{stats},rank,num_workers,size,collective,devices_per_node,max_devices_per_node"
    latency_us, bytes_per_us = 3.0, 50e3

    def us(size: int) -> float:
        return 2 * 3 * (latency_us + size / 4 / bytes_per_us)

    rows = [
        [i, *ms(us(size) / 1e3), 0, 4, size, "all_reduce", 4, 8]
        for i, size in enumerate((2048, 2**20, 2**26))
    ]
    rows.append([9, *ms(1.0), 0, 4, 64, "all_gather", 4, 8])
    write_csv(folder / "all_reduce.csv", header, rows)
    report, _ = import_profiles([folder], target(tmp_path))
    note = next(note for note in report.notes if "ring" in note)
    assert (
        "over 4 ranks" in note and "link_bw 50 (GB/s)" in note and "link_latency 3000 (ns)" in note
    )
    assert "no bandwidth" in fitted(2, [(10.0, 5.0), (1e6, 1.0)])


def write_aiconfigurator(folder: Path, parquet: bool) -> None:
    who = {"framework": "VLLM", "version": "0.24.0", "device": "Card"}
    gemms = [
        {
            **who,
            "op_name": "gemm",
            "kernel_source": "x",
            "gemm_dtype": dtype,
            "m": m,
            "n": n,
            "k": k,
            "latency": ms_,
        }
        for dtype, n, k, m, ms_ in (
            ("bfloat16", 6144, 4096, 1, 0.01),
            ("bfloat16", 6144, 4096, 2048, 0.4),
            ("fp8", 6144, 4096, 1, 0.005),
            ("bfloat16", 28672, 4096, 1, 0.04),
            ("bfloat16", 28672, 4096, 2048, 1.6),
            ("bfloat16", 7, 7, 1, 9.0),
        )
    ]
    shape = {
        "num_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "window_size": 0,
        "beam_width": 1,
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
    }
    new = {**who, "op_name": "context_attention", **shape}
    context = [
        {**new, "batch_size": b, "isl": q, "step": k, "latency": area(q, k) / 1e3}
        for b, q, k in ((1, 64, 0), (1, 512, 0), (1, 2048, 0), (1, 2048, 2048), (4, 64, 0))
    ]  # fmt: skip
    generation = [
        {**who, "op_name": "generation_attention", **shape, "batch_size": n, "isl": kv, "step": 1,
         "latency": decode_time(n, kv) / 1e3}
        for n in (1, 8, 64) for kv in (64, 512, 2048)
    ]  # fmt: skip
    generation.append({**generation[0], "window_size": 128})
    tables = {
        "gemm_perf": gemms,
        "context_attention_perf": context,
        "generation_attention_perf": generation,
    }
    folder.mkdir()
    for name, rows in tables.items():
        if parquet:
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
        else:
            write_csv(
                folder / f"{name}.txt", ",".join(rows[0]), [list(row.values()) for row in rows]
            )


@pytest.mark.parametrize("parquet", [False, True])
def test_aiconfigurators_tables_give_the_models_own_shapes(tmp_path: Path, parquet: bool) -> None:
    write_aiconfigurator(tmp_path / "aic", parquet)
    report, _ = import_profiles([tmp_path / "aic"], target(tmp_path))
    costs = compiled(tmp_path, group_memory_bandwidth_bytes_per_s=10**12)
    assert cost_us(costs, "qkv_proj", 2048) == pytest.approx(400) and cost_us(
        costs, "gate_up_proj", 1
    ) == pytest.approx(40)
    assert decode_us(costs.attention, 8, 512) == pytest.approx(decode_time(8, 512))
    assert prefill_us(costs.attention, 512, 0) == pytest.approx(area(512, 0))
    text = "\n".join(report.lines())
    assert "a GEMM that the model does not have" in text and "windowed attention" in text
    assert "measured by VLLM, 0.24.0, Card" in text and "o_proj" in text


def test_a_newer_bundle_comes_back_as_it_was(tmp_path: Path) -> None:
    write_bundle(tmp_path / "in", hardware="Card")
    report, written = import_profiles([tmp_path / "in"], target(tmp_path))
    assert {path.name for path in written} == {
        "dense.csv",
        "per_sequence.csv",
        "attention.csv",
        "skew.csv",
        "meta.yaml",
    }
    ours = compiled(tmp_path, source="bundle")
    theirs = compile_costs(
        request(
            hardware="Card", profile_dirs=(tmp_path / "in",), max_model_len=4096, source="bundle"
        )
    )
    assert ours.table_hash == theirs.table_hash and ours.attention.skew_ps_per_token_q20 > 0
    assert decode_us(ours.attention, 8, 64) == pytest.approx(attention_us(0, 0, 8, 64))
    assert not report.skipped


def test_a_fit_of_skews_is_left_out_by_name(tmp_path: Path) -> None:
    write_bundle(tmp_path / "in", hardware="Card")
    fit = next((tmp_path / "in").rglob("skew.csv")).with_name("skew_fit.csv")
    fit.write_text(
        "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n"
        "0,n<=128,sr<=15%,kvB<=1k,kp=0,0.1,4\n"
    )
    report, _ = import_profiles([tmp_path / "in"], target(tmp_path))
    assert [line for line in report.lines() if "skew_fit.csv: a fit of skew.csv" in line]


def test_an_older_bundle_becomes_a_newer_one(tmp_path: Path) -> None:
    write_older(tmp_path / "in", hardware="Card")
    report, _ = import_profiles([tmp_path / "in"], target(tmp_path))
    costs = compiled(tmp_path, source="auto", group_memory_bandwidth_bytes_per_s=10**12)
    assert cost_us(costs, "qkv_proj", 16) == pytest.approx(times_us(10, 16))
    assert cost_us(costs, "lm_head", 2) == pytest.approx(times_us(90, 2))
    assert prefill_us(costs.attention, 1024, 64) == pytest.approx(area(1024, 64), rel=1e-3)
    assert decode_us(costs.attention, 2, 64) == pytest.approx(decode_time(2, 64), rel=1e-3)
    assert any("no operator of the model" in reason for _, reason in report.skipped) is False


def test_older_experts_go_to_tp1_whole(tmp_path: Path) -> None:
    layers = {
        name: base for name, base in DENSE.items() if not name.startswith(("gate_", "up_", "down_"))
    }
    write_older(tmp_path / "in", PHI, hardware="Card", tp=2, layers={**layers, **EXPERTS})
    _, written = import_profiles([tmp_path / "in"], target(tmp_path, PHI, tp=2))
    assert next(path for path in written if path.name == "moe.csv").parent.name == "tp1"
    costs = compiled(tmp_path, PHI, tp=2, ep=2, group_memory_bandwidth_bytes_per_s=10**12)
    each = 7.0 + 7.0 + 2.0 + 8.0
    assert cost_us(costs, "moe", 1024) == pytest.approx(8 * times_us(each, 1024 * 2 / 16), rel=0.02)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("a.csv", "", "the file is empty"),
        ("a.csv", "x,y\n1,2\n", r"a\.csv:1: the columns x, y are of no known table"),
        ("a.csv", "layer,tokens,time_us\nq,1\n", r"a\.csv:2: the row has 2 fields"),
        ("tp1/a.csv", "layer,tokens,time_us\nq,1.5,3\n", r"a\.csv:2: tokens is 1\.5"),
        ("tp1/a.csv", "layer,tokens,time_us\nq,1,-3\n", r"a\.csv:2: time_us is -3"),
        ("tp1/a.csv", "layer,tokens,time_us\nq,1,\n", r"a\.csv:2: time_us is blank"),
        ("tp1/a.csv", "layer,tokens,time_us\nq,1,3\n", "no attention rows"),
        ("a.md", "nothing", r"no \.csv, \.txt or \.parquet"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InputError, match=expected):
        import_profiles([tmp_path / "in"], target(tmp_path))


@pytest.mark.parametrize("wanted", [None, "external"])
def test_a_folder_of_far_more_than_one_profile_is_refused(
    tmp_path: Path, wanted: str | None
) -> None:
    for number in range(501):
        (tmp_path / f"{number}.csv").write_text("layer,tokens,time_us\nq,1,3\n")
    with pytest.raises(
        InputError, match=r"more than 500 tables .* name the folder of the profile of one device"
    ):
        import_profiles([tmp_path], target(tmp_path), wanted)


def test_hidden_folders_and_other_text_are_left_out(tmp_path: Path) -> None:
    hidden = tmp_path / "in" / ".venv" / "a.csv"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("layer,tokens,time_us\nq,1\n")
    with pytest.raises(InputError, match=r"no \.csv, \.txt or \.parquet"):
        import_profiles([tmp_path / "in"], target(tmp_path))
    (tmp_path / "in" / "notes.txt").write_text("a list, of\nwords\n")
    with pytest.raises(
        InputError, match=r"notes\.txt:1: the columns a list, of are of no known table"
    ):
        import_profiles([tmp_path / "in"], target(tmp_path))


EXTERNAL_ROWS: list[dict[str, object]] = [
    {"operator": "qkv_proj", "device": "Card", "tokens": 1, "latency_us": 10},
    {
        "operator": "qkv_proj",
        "device": "Card",
        "tokens": 64,
        "latency_us": 12,
        "energy_uj": 5,
        "confidence": 0.5,
    },
    {"operator": "decode", "sequences": 8, "cached_tokens": 100, "latency_us": 7},
    {"operator": "qkv_proj", "device": "Other", "tokens": 1, "latency_us": 99},
    {"operator": "qkv_proj", "device": "Card", "tokens": 1, "tp": 2, "latency_us": 99},
    {"operator": "decode", "sequences": 8, "cached_tokens": 100, "head_dim": 64, "latency_us": 99},
    {"operator": "conv2d", "device": "Card", "tokens": 1, "latency_us": 99},
]


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_external_tables_keep_the_rows_of_the_target(tmp_path: Path, ending: str) -> None:
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / f"times.{ending}"
    if ending == "json":
        path.write_text(json.dumps(EXTERNAL_ROWS))
    elif ending == "parquet":
        names = dict.fromkeys(name for row in EXTERNAL_ROWS for name in row)
        pq.write_table(
            pa.table({name: [row.get(name) for row in EXTERNAL_ROWS] for name in names}), path
        )
    else:
        names = dict.fromkeys(name for row in EXTERNAL_ROWS for name in row)
        write_csv(
            path, ",".join(names), [[row.get(name, "") for name in names] for row in EXTERNAL_ROWS]
        )
    report, written = import_profiles(
        [path], target(tmp_path), "external" if ending == "json" else None
    )
    table = read_external(written[0])
    assert [(p.operator, p.latency_us, p.confidence) for p in table.points] == [
        ("qkv_proj", 10, 1), ("qkv_proj", 12, 0.5), ("decode", 7, 1),
    ]  # fmt: skip
    assert {reason for _, reason in report.skipped} == {
        "of the device Other", "of tp 2", "of attention with other heads",
        'of the operator "conv2d", which the model does not have',
    }  # fmt: skip
    asked = request(LLAMA, hardware="Card", max_model_len=4096)
    curve = ExternalSource(asked, [table]).operator(
        next(op for op in asked.operators if op.name == "qkv_proj"), 64
    )
    assert curve is not None and abs(curve.ps[64] - 12 * 10**6) <= 1


def test_external_tables_of_others_are_refused_with_the_reasons(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    write_csv(path, "operator,device,tokens,latency_us", [["qkv_proj", "Other", 1, 5]])
    with pytest.raises(InputError, match=r"1 row of times\.csv is of the device Other"):
        import_profiles([path], target(tmp_path))


def test_the_command_prints_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_vidur(tmp_path / "vidur")
    arguments = [
        str(tmp_path / "vidur"),
        "--model",
        LLAMA,
        "--hardware",
        "Card",
        "--out-root",
        str(tmp_path / "out"),
    ]
    assert main(["import", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.startswith("format: vidur or frontier\n") and "read:" in out and "skipped:" in out
    assert main(["import", *arguments, "--format", "odd"]) == 2
    assert "external" in capsys.readouterr().err


def test_the_published_bundle_imports_to_the_same_tables(tmp_path: Path) -> None:
    root = shared("groundtruth/profiler/perf")
    import_profiles([root / "RTXPRO6000" / LLAMA], target(tmp_path))
    assert len(open_table(target(tmp_path).folder / "dense.csv").rows) == 1368
