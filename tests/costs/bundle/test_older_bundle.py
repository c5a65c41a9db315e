"""Older-generation bundles: units, sums of projections, experts one by one, predictions, what lies
beyond the data.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from llmsim.config.errors import InputError
from llmsim.core import Provenance
from llmsim.costs import CompiledCosts, compile_costs
from llmsim.costs.explain import decode_us, prefill_us
from llmsim.model import Dtypes, Layout, load_model, operators
from tests.costs.builders import LLAMA, Rows, request, split_grid, write_csv
from tests.shared_data import shared

PHI = "microsoft/Phi-mini-MoE-instruct"
DENSE = {
    "embedding": 1.0,
    "input_layernorm": 2.0,
    "post_layernorm": 4.0,
    "q_proj": 8.0,
    "k_proj": 1.0,
    "v_proj": 1.0,
    "rope": 3.0,
    "o_proj": 8.0,
    "gate_proj": 20.0,
    "up_proj": 21.0,
    "act_fn": 2.0,
    "down_proj": 22.0,
    "final_layernorm": 2.0,
    "lm_head": 90.0,
    "attn": 5.0,
}
EXPERTS = {"gate": 6.0, "expert.w1": 7.0, "expert.w3": 7.0, "expert.w2": 8.0}
SHEET = "RTX-A6000"


def times_us(base: float, tokens: int) -> float:
    return base + 0.01 * base * tokens


def write_older(
    root: Path,
    model: str = LLAMA,
    *,
    hardware: str = SHEET,
    tp: int = 1,
    layers: Mapping[str, float] = DENSE,
    files: Mapping[str, tuple[str, Rows]] | None = None,
) -> Path:
    """A bundle with layers.csv (ns) at tokens 1, 2, 16, 1024 and the given further files."""
    folder = root / hardware / model / f"tp{tp}"
    rows = [
        (name, t, 0, tp, round(times_us(base, t) * 1000))
        for name, base in layers.items()
        for t in (1, 2, 16, 1024)
    ]
    write_csv(folder / "layers.csv", "layer_name,input,kv_cache,tp_size,latency(ns)", rows)
    for name, (header, table) in (files if files is not None else predictions()).items():
        write_csv(folder / name, header, table)
    return folder


def predictions(scale: float = 1.0) -> dict[str, tuple[str, Rows]]:
    """Nanoseconds: a prefill of q on k costs q (2 k + q + 1) / 2 * 1e-4 us, a decode n * kv * 1e-3
    us and 5 more.
    """
    prefill = [(k, q, 1e3 * area(q, k)) for q in (32, 64, 1024, 2048) for k in (0, 64, 2048)]
    prefill += [
        (k, q, t) for q in (4096, 8192) for k, p, t in prefill if p == 2048
    ]  # the regressor's flat tail
    decode = [(n, k, scale * 1e3 * decode_time(n, k)) for n in (1, 2, 256) for k in (0, 64, 2048)]
    return {
        "predictions/attn_prefill_predictions.csv": (
            "kv_cache_size,prefill_chunk_size,prediction",
            prefill,
        ),
        "predictions/attn_decode_predictions.csv": ("batch_size,kv_cache_size,prediction", decode),
    }


def area(q: float, k: float) -> float:
    return q * (2 * k + q + 1) / 2 * 1e-4


def decode_time(n: float, k: float) -> float:
    return n * k * 1e-2 + 5.0


MEASURED_HEADER = (
    "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,n_kv_head,"
    "num_tensor_parallel_workers,max_model_len,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,attention_backend"
)


def measured(own_tokens: bool = True) -> tuple[str, Rows]:
    """Milliseconds; in the published profiles kv_cache_size of a prefill counts its own chunk."""
    tail = ("FLASH_ATTENTION",)
    rows: list[tuple[object, ...]] = []
    for q in (32, 64, 1024):
        for k in (0, 64, 2048):
            rows.append(
                (
                    area(q, k) / 1e3,
                    "",
                    4096,
                    32,
                    8,
                    1,
                    131072,
                    1,
                    q,
                    k + q * own_tokens,
                    True,
                    *tail,
                )
            )
    for n in (1, 2, 256):
        for k in (32, 64, 2048):
            rows.append(
                ("", decode_time(n, k) / 1e3, 4096, 32, 8, 1, 131072, n, 0, k, False, *tail)
            )
    return MEASURED_HEADER, rows


def compiled(
    root: Path, model: str = LLAMA, hardware: str = SHEET, **changes: object
) -> CompiledCosts:
    return compile_costs(request(model, hardware=hardware, profile_dirs=(root,), **changes))


def cost_us(costs: CompiledCosts, name: str, count: int) -> float:
    return next(float(op.ps[count]) for op in costs.ops if op.name == name) / 1e6


def test_projections_add_up_and_nanoseconds_become_microseconds(tmp_path: Path) -> None:
    write_older(tmp_path)
    costs = compiled(tmp_path)
    assert cost_us(costs, "qkv_proj", 16) == pytest.approx(times_us(8 + 1 + 1, 16))
    assert cost_us(costs, "gate_up_proj", 2) == pytest.approx(times_us(41, 2))
    norms = [op for op in costs.ops if op.name == "layernorm"]
    assert sum(int(op.ps[16]) for op in norms) == pytest.approx(1e6 * times_us(6, 16))
    assert cost_us(costs, "lm_head", 2) == pytest.approx(times_us(90, 2))
    assert next(op for op in costs.ops if op.name == "lm_head").feature == "sequences"
    assert costs.from_bundle and not costs.floor.enforce


def test_beyond_the_rows_the_trend_continues(tmp_path: Path) -> None:
    write_older(tmp_path)
    op = next(op for op in compiled(tmp_path, max_tokens=4096).ops if op.name == "o_proj")
    assert op.ps[4096] / 1e6 == pytest.approx(times_us(8, 4096), rel=1e-6)
    assert (
        op.provenance[4096] == Provenance.EXTRAPOLATED and op.provenance[16] == Provenance.MEASURED
    )


def test_predictions_are_exact_inside_and_follow_the_attended_area_outside(tmp_path: Path) -> None:
    write_older(tmp_path)
    attention = compiled(tmp_path, max_tokens=8192, max_model_len=32768, max_seqs=512).attention
    split = split_grid(attention)
    for q, k in ((64, 0), (1024, 2048), (64, 2048)):
        assert prefill_us(attention, q, k) == pytest.approx(area(q, k), abs=1e-5)
    assert decode_us(attention, 2, 64) == pytest.approx(decode_time(2, 64), abs=1e-5)
    # the regressor repeats its row of 2048 tokens for longer chunks; attention does not
    assert prefill_us(attention, 8192, 0) == pytest.approx(area(8192, 0), rel=0.01)
    assert prefill_us(attention, 1024, 16384) == pytest.approx(area(1024, 16384), rel=0.05)
    assert decode_us(attention, 2, 16384) == pytest.approx(8 * decode_time(2, 2048), rel=1e-3)
    last = split.prefill_provenance[-1]
    assert (last == Provenance.EXTRAPOLATED).all() and split.prefill_provenance[
        0, 0
    ] == Provenance.INTERPOLATED


def test_attention_csv_serves_without_predictions(tmp_path: Path) -> None:
    write_older(tmp_path, files={"attention.csv": measured()})
    costs = compiled(tmp_path)
    assert prefill_us(costs.attention, 64, 64) == pytest.approx(area(64, 64), abs=1e-5)
    assert decode_us(costs.attention, 256, 2048) == pytest.approx(decode_time(256, 2048), abs=1e-3)
    assert any("counts the chunk itself" in note for note in costs.notes)
    history = tmp_path / "history"
    write_older(history, files={"attention.csv": measured(own_tokens=False)})
    costs = compiled(history)
    assert prefill_us(costs.attention, 64, 64) == pytest.approx(area(64, 64), abs=1e-5)
    assert not any("counts the chunk" in note for note in costs.notes)


def test_attention_csv_with_one_time_in_nanoseconds_serves_too(tmp_path: Path) -> None:
    """As the published profile of a TPU v6e has it: no shape, and one column of medians for both
    phases.
    """
    header = "prefill_chunk_size,kv_cache_size,batch_size,is_prefill,mean_ns,p50_ns,p90_ns,max_ns"
    times = [(q, k, 1, True, 1e3 * area(q, k)) for q in (32, 64, 1024) for k in (0, 64, 2048)]
    times += [
        (0, k, n, False, 1e3 * decode_time(n, k)) for n in (1, 2, 256) for k in (32, 64, 2048)
    ]
    rows = [(*sizes, 9 * ns, ns, 9 * ns, 9 * ns) for *sizes, ns in times]
    write_older(tmp_path, files={"attention.csv": (header, rows)})
    costs = compiled(tmp_path)
    assert prefill_us(costs.attention, 64, 64) == pytest.approx(area(64, 64), abs=1e-5)
    assert decode_us(costs.attention, 256, 2048) == pytest.approx(decode_time(256, 2048), abs=1e-3)
    write_older(
        tmp_path / "prefills", files={"attention.csv": (header, [row for row in rows if row[3]])}
    )
    with pytest.raises(InputError, match=r"attention\.csv: there is no decode row"):
        compiled(tmp_path / "prefills")


def test_scaled_predictions_are_named(tmp_path: Path) -> None:
    write_older(
        tmp_path, files={**predictions(scale=3.5), "attention.csv": measured(own_tokens=False)}
    )
    notes = compiled(tmp_path).notes
    assert any("decode predictions are 3.5 times" in note for note in notes)
    assert not any("prefill predictions are" in note for note in notes)


def test_a_prediction_that_could_not_read_its_kv_is_raised(tmp_path: Path) -> None:
    files = dict(predictions())
    fast = [(n, k, 8_000 + n) for n in (1, 2, 256) for k in (0, 64, 2048)]
    files["predictions/attn_decode_predictions.csv"] = ("batch_size,kv_cache_size,prediction", fast)
    write_older(tmp_path, files=files)
    costs = compiled(tmp_path, max_seqs=256)
    kv_bytes = 256 * 2048 * 2 * 8 * 128 * 2
    assert decode_us(costs.attention, 256, 2048) == pytest.approx(kv_bytes / 768e9 * 1e6, rel=1e-6)
    assert any("raised" in note for note in costs.notes)
    assert decode_us(costs.attention, 2, 64) == pytest.approx(
        8.002
    )  # fits the last-level cache: stays as published


def test_experts_run_one_after_the_other(tmp_path: Path) -> None:
    layers = {
        name: base for name, base in DENSE.items() if not name.startswith(("gate_", "up_", "down_"))
    }
    write_older(tmp_path, PHI, layers={**layers, **EXPERTS})
    costs = compiled(tmp_path, PHI)
    assert cost_us(costs, "moe_gate", 2) == pytest.approx(times_us(6, 2))
    each = 7.0 + 7.0 + 2.0 + 8.0
    assert cost_us(costs, "moe", 1) == pytest.approx(
        2 * times_us(each, 1)
    )  # one token, its two experts
    assert cost_us(costs, "moe", 1024) == pytest.approx(
        16 * times_us(each, 1024 * 2 / 16), rel=1e-3
    )
    write_older(tmp_path, PHI, tp=2, layers={**layers, **EXPERTS})
    spread = compiled(tmp_path, PHI, tp=2, ep=2)
    assert cost_us(spread, "moe", 1024) == pytest.approx(
        8 * times_us(each, 1024 * 2 / 16), rel=1e-3
    )
    sliced = compiled(tmp_path, PHI, tp=2)
    assert cost_us(sliced, "moe", 1024) == pytest.approx(
        8 * times_us(each, 1024 * 2 / 16), rel=1e-3
    )
    assert any("divided by tp 2" in note for note in sliced.notes)


def test_the_sampler_comes_from_elsewhere_or_counts_as_nothing(tmp_path: Path) -> None:
    write_older(tmp_path)
    costs = compiled(tmp_path)
    assert cost_us(costs, "sampler", 8) > 0
    write_older(tmp_path, hardware="HomeMade")
    alone = compiled(tmp_path, hardware="HomeMade")
    assert cost_us(alone, "sampler", 8) == 0 and any(
        "sampling counts as 0" in note for note in alone.notes
    )


def broken(
    name: str, header: str, rows: Iterable[tuple[object, ...]]
) -> dict[str, tuple[str, Rows]]:
    return {**predictions(), name: (header, list(rows))}


DECODE = "predictions/attn_decode_predictions.csv"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({DECODE: predictions()[DECODE]}, r"attn_prefill_predictions\.csv is missing"),
        (
            broken(DECODE, "batch_size,kv_cache_size,prediction", [(1, 0, -3)]),
            r"decode_predictions\.csv:2:3",
        ),
        (
            broken(DECODE, "batch_size,kv_cache_size,predicted", [(1, 0, 3)]),
            r'column "prediction" is missing',
        ),
        (
            broken(DECODE, "batch_size,kv_cache_size,prediction", [(1, 0, 3), (1, 0, 4)]),
            r"already given in line 2",
        ),
        (
            {
                "attention.csv": (
                    MEASURED_HEADER,
                    [("0.1", "", 1, 16, 8, 1, 9, 1, 32, 32, True, "F")],
                )
            },
            r"no row is of 32 query and 8 KV heads",
        ),
        (
            {"attention.csv": (MEASURED_HEADER, [("", "", 1, 32, 8, 1, 9, 1, 32, 32, True, "F")])},
            r'attention\.csv:2: the time is ""',
        ),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, files: dict[str, tuple[str, Rows]], expected: str | None
) -> None:
    write_older(tmp_path, files=files)
    if expected is None:  # no table of attention at all: the attn rows of layers.csv have to do
        attention = compiled(tmp_path).attention
        assert prefill_us(attention, 16, 0) == pytest.approx(times_us(5.0, 16))
        return
    with pytest.raises(InputError, match=expected):
        compiled(tmp_path)


def test_a_missing_degree_says_which_there_are(tmp_path: Path) -> None:
    folder = write_older(tmp_path)
    with pytest.raises(InputError, match=r"no profile for tp4 \(there are: tp1\)"):
        compiled(tmp_path, tp=4, source="bundle")
    folder.rename(folder.with_name("tp4"))
    with pytest.raises(InputError, match=r"no row has tp_size 4 \(there are: 1\)"):
        compiled(tmp_path, tp=4)


@pytest.mark.parametrize(("model", "tp"), [(LLAMA, 1), (LLAMA, 2), (PHI, 1), (PHI, 2)])
def test_the_published_a6000_profiles_run_unchanged(model: str, tp: int) -> None:
    root = shared("artifact/perf_models")
    config, dtypes = load_model(model), Dtypes()
    layout = Layout(tp, tp if config.num_experts else 1)
    ops = operators(config, layout, dtypes)
    costs = compile_costs(
        request(model, hardware="A6000", profile_dirs=(root,), layout=layout, operators=ops)
    )
    assert costs.from_bundle
    assert all((op.ps[1:] > 0).all() for op in costs.ops)
    split = split_grid(costs.attention)
    assert (split.decode_ps > 0).all() and (np.diff(split.kv_axis) > 0).all()
    assert any("predictions" in note for note in costs.notes)
