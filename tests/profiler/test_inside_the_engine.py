"""Rows taken inside transformers' engine: every operator has its place, and the places add up to
the step.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmsim.config.errors import InputError
from llmsim.model import Layout, load_model, resolve_dtypes
from llmsim.profiler.bundle.defaults import Asked, clock_of, limits_for, threads_of
from llmsim.profiler.bundle.plan import Limits, Point, attention_points
from llmsim.profiler.cli.measure import MeasureOptions, measure
from llmsim.profiler.rank.rank import measured_operators
from llmsim.profiler.serve.engine_steps import NotHere, open_engine
from llmsim.profiler.serve.module_times import BORDERS, MASK, OUTSIDE, Places, border_of

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
EXPERTS = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}
GPT = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 512,
    "n_positions": 128,
    "torch_dtype": "float32",
}
WINDOWS = {**LLAMA, "model_type": "mistral", "sliding_window": 64}
SMALL = Limits(32, 4, 64, 6.0, 6.0, 4.0, 128)


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch", reason="PyTorch is not installed (extra llmsim[profiler])")
    pytest.importorskip(
        "transformers", reason="transformers is not installed (extra llmsim[profiler])"
    )
    found.set_num_threads(1)
    found.set_grad_enabled(False)
    return found


def saved(fields: dict[str, object], folder: Path) -> str:
    path = folder / "model.json"
    path.write_text(json.dumps(fields))
    return str(path)


def opened(torch: Any, fields: dict[str, object], folder: Path) -> tuple[Any, str]:
    path = saved(fields, folder)
    model = load_model(path)
    ops = measured_operators(model, Layout(1, 1), resolve_dtypes(model, "fp32"))
    return open_engine(torch, torch.device("cpu"), path, model, "fp32", ops, SMALL, "cpu", (1,))


def test_places_divide_the_time_without_a_gap() -> None:
    ticks = iter(range(0, 1000, 10))
    places = Places(lambda: float(next(ticks)))
    work = places.watched(
        lambda: places.watched(lambda: None, "inner", "outer")(), "outer", "after"
    )
    work()
    assert places.taken() == {OUTSIDE: 10.0, "outer": 20.0, "inner": 10.0, "after": 10.0}
    places.cost_s = 4.0
    work()
    assert places.taken() == {OUTSIDE: 6.0, "outer": 12.0, "inner": 6.0, "after": 6.0}
    places.cost_s = 40.0  # a noisy difference: no place is left with nothing
    work()
    assert places.taken() == {OUTSIDE: 5.0, "outer": 10.0, "inner": 5.0, "after": 5.0}


def test_a_module_is_told_by_the_end_of_its_path() -> None:
    assert border_of("model.layers.0.self_attn.v_proj", gated=True) == ("qkv_proj", "rotary_emb")
    assert border_of("transformer.h.3.attn.c_proj", gated=False) == ("o_proj", "layernorm")
    assert border_of("model.layers.11", gated=True) == ("layernorm", "layernorm")
    assert border_of("model.layers.0.post_attention_layernorm", gated=False) == (
        "layernorm",
        "up_proj",
    )
    assert border_of("model.layers.0.mlp.experts.act_fn", gated=True) is None
    assert border_of("model.layers.0.self_attn", gated=True) is None
    assert len(set(BORDERS)) == len(BORDERS)


@pytest.mark.parametrize("fields", [LLAMA, EXPERTS, GPT], ids=["llama", "experts", "gpt2"])
def test_every_operator_has_its_place(
    torch: Any, fields: dict[str, object], tmp_path: Path
) -> None:
    engine, why = opened(torch, fields, tmp_path)
    assert why == ""
    model = load_model(str(tmp_path / "model.json"))
    names = {
        op.name for op in measured_operators(model, Layout(1, 1), resolve_dtypes(model, "fp32"))
    }
    dense = engine.rows(Point(0, "dense", ("qkv_proj", 3)))
    heads = engine.rows(Point(0, "per_sequence", ("lm_head", 3)))
    assert {name for name, _ in dense} == names - {"attention"} and set(heads) == {("lm_head", 3)}
    assert all(timing.median_us > 0 and timing.samples >= 3 for timing in dense.values())
    with engine._marked():
        began = engine._clock.now()
        spent = engine._spent([(1, 9), (1, 9), (7, 2)])
        took = engine._clock.now() - began
    assert 0.5 * took < sum(spent.values()) <= took  # making up the requests is not in it
    assert spent[OUTSIDE] > 0 and spent[MASK] > 0


def test_attention_grows_with_what_it_attends_to(torch: Any, tmp_path: Path) -> None:
    path = saved({**LLAMA, "max_position_embeddings": 4096}, tmp_path)
    model = load_model(path)
    ops = measured_operators(model, Layout(1, 1), resolve_dtypes(model, "fp32"))
    limits = Limits(64, 4, 2048, max_total_kv=8192)
    engine, why = open_engine(
        torch, torch.device("cpu"), path, model, "fp32", ops, limits, "cpu", (1,)
    )
    assert engine is not None, why
    short, long, beside = (
        engine.rows(Point(0, "attention", key))[key].median_us
        for key in ((0, 0, 4, 16), (0, 0, 4, 2048), (64, 512, 4, 2048))
    )
    assert short < long / 2 < beside


def test_experts_are_chosen_in_turn(torch: Any, tmp_path: Path) -> None:
    from llmsim.profiler.serve.engine_steps import _routed

    engine, _ = opened(torch, EXPERTS, tmp_path)
    chosen = []
    for path, module in engine._model.named_modules():
        if path.endswith(".experts"):
            forward = type(module).forward.__get__(module)
            module.forward = lambda hidden, index, *rest, _run=forward: (
                chosen.append(index.unique().numel()), _run(hidden, index, *rest))[1]  # fmt: skip
    with _routed(torch, engine._model, 3):
        engine._spent([(1, 4)] * 4)
    assert chosen == [3, 3]
    chosen.clear()
    engine._spent([(1, 4)] * 4)  # what was there before is there again
    assert len(chosen) == 2


def test_what_the_engine_cannot_do_is_said(torch: Any, tmp_path: Path) -> None:
    assert "window" in opened(torch, WINDOWS, tmp_path)[1]
    engine, _ = opened(torch, GPT, tmp_path)
    with pytest.raises(MemoryError, match="128 positions"):
        engine.rows(Point(0, "attention", (32, 100, 0, 0)))
    with pytest.raises(NotHere, match="no module known as"):
        from llmsim.profiler.serve.engine_steps import EngineSteps

        path = saved(LLAMA, tmp_path)
        model = load_model(path)
        ops = [
            *measured_operators(
                load_model(saved(EXPERTS, tmp_path)), Layout(1, 1), resolve_dtypes(model, "fp32")
            )
        ]
        EngineSteps(
            torch, torch.device("cpu"), saved(LLAMA, tmp_path), model, "fp32", ops, SMALL, "cpu"
        )


def test_measure_takes_its_rows_there_on_a_cpu(torch: Any, tmp_path: Path) -> None:
    options = MeasureOptions(
        model=saved(EXPERTS, tmp_path),
        hardware="cpu",
        out_root=tmp_path / "perf",
        degrees=(1,),
        limits=SMALL,
        dtype="fp32",
        device="cpu",
        threads=1,
        clock="cpu",
        style="auto",
    )
    folder = measure(options)
    meta = yaml.safe_load((folder / "meta.yaml").read_text())
    assert (
        meta["state"] == "complete"
        and meta["kernels"]["style"] == "engine"
        and not meta["rows_skipped"]
    )
    tables = {
        path.stem: list(csv.DictReader(path.open())) for path in (folder / "tp1").glob("*.csv")
    }
    assert set(tables) == {"dense", "per_sequence", "attention", "moe"}
    assert all(float(row["time_us"]) > 0 for rows in tables.values() for row in rows)
    with pytest.raises(InputError, match=r'--style is "engine".*give --tp 1'):
        measure(MeasureOptions(**{**vars(options), "degrees": (1, 2), "style": "engine"}))


def test_rows_of_many_long_sequences_are_left_out() -> None:
    keys = [point.key for point in attention_points(Limits(64, 8, 4096, 6.0, 6.0, 4.0, 8192))]
    assert keys and all(int(str(n)) * int(str(kv)) <= 8192 or kv == 16 for _, _, n, kv in keys)
    assert {n for chunk, _, n, _ in keys if chunk and n} == {1, 4, 8}


def test_defaults_of_a_cpu() -> None:
    small = limits_for(Asked(), cpu=True, positions=1024)
    assert (small.max_tokens, small.max_seqs, small.max_kv) == (512, 32, 1024)
    assert limits_for(Asked(max_seqs=7, max_kv=99), cpu=True, positions=1024).max_seqs == 7
    large = limits_for(Asked(), cpu=False, positions=131072)
    assert (large.max_tokens, large.max_seqs, large.max_kv, large.max_total_kv) == (
        2048,
        256,
        16384,
        None,
    )
    assert [threads_of(None, cpu=True), threads_of(None, cpu=False), threads_of(3, cpu=True)] == [
        1,
        0,
        3,
    ]
    assert clock_of("auto", None, cpu=True) == "cpu" and clock_of("auto", 2, cpu=True) == "wall"
    assert clock_of("auto", None, cpu=False) == "wall" and clock_of("wall", 1, cpu=True) == "wall"
