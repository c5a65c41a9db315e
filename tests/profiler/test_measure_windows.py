"""Models whose layers see a window or a chunk, with norms behind their blocks: measured on the CPU,
then simulated.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.model import Attention, Dtypes, Layout, load_model, operators
from llmsim.profiler.bundle.plan import attention_points, points_of, seen_limits
from llmsim.profiler.cli.dry_run import dry_run
from llmsim.profiler.cli.measure import MeasureOptions
from llmsim.profiler.rank.dense import unknown_operators
from tests.profiler.tiny_models import LIMITS, TINY, column, measured, simulated, written

WINDOW = 32
GEMMA = {**TINY, "model_type": "gemma3_text", "sliding_window": WINDOW, "sliding_window_pattern": 3}
MISTRAL = {**TINY, "model_type": "mistral", "sliding_window": WINDOW}
LLAMA4 = {
    **TINY,
    "model_type": "llama4_text",
    "attention_chunk_size": WINDOW,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 96,
    "interleave_moe_layer_step": 1,
    "num_hidden_layers": 4,
    "no_rope_layers": [1, 1, 1, 0],
}
FP32 = Dtypes("fp32", "fp32", "fp32")


@pytest.mark.parametrize(
    "fields", [GEMMA, MISTRAL, LLAMA4], ids=lambda fields: str(fields["model_type"])
)
def test_a_model_with_windows_is_measured_and_simulated(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path, fields)
    folder = measured(path) / "tp1"
    layers = set(column(folder / "dense.csv", "layer"))
    assert ("post_norm" in layers) == (fields is GEMMA) and not any(
        name.startswith("attention") for name in layers
    )
    longest = max(int(kv) for kv in column(folder / "attention.csv", "kv_decode"))
    assert longest == (WINDOW if fields is MISTRAL else LIMITS.max_kv), (
        "further than any layer sees is not measured"
    )
    lengths = [(20, 8), (WINDOW, 60), (200, 60)]
    found = simulated(path, lengths)
    assert [(int(row["input"]), int(row["output"])) for row in found] == lengths
    assert all(0 < int(row["TTFT"]) < int(row["end_time"]) - int(row["arrival"]) for row in found)
    _, short, long = (json.loads(row["ITL"]) for row in found)
    if fields is MISTRAL:
        assert set(short) == set(long), (
            "a decode behind the window costs the same, however long its context"
        )
    else:
        assert len(set(long)) > 1, "layers that see everything still read more with every token"


def test_post_norms_and_activations_are_those_of_the_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra llmsim[profiler])")
    from llmsim.profiler.device.device import describe
    from llmsim.profiler.rank.rank import Rank

    cpu = torch.device("cpu")
    model = load_model(str(written(tmp_path, GEMMA)))
    rank = Rank(torch, cpu, model, Layout(2, 1), FP32, describe(torch, cpu), "fused", "sdpa")
    normed = rank.work("dense", ("post_norm", 5))[0]()
    assert normed.shape == (5, 64)  # type: ignore[attr-defined]
    names = [name for name, _ in rank.program(4)]
    assert names.count("post_norm") == 2 * 3 and names.count("") == 3, (
        "one attention and two post norms in each layer"
    )
    assert rank.attention_work([(1, 4)])[2] == 3, (
        "what happens once a step is shared by layers of both kinds"
    )
    plain = {
        **TINY,
        "model_type": "starcoder2",
        "sliding_window": WINDOW,
        "use_bias": True,
        "hidden_act": "gelu",
    }
    model = load_model(str(written(tmp_path, {**plain, "norm_epsilon": 1e-5})))
    rank = Rank(torch, cpu, model, Layout(2, 1), FP32, describe(torch, cpu), "fused", "sdpa")
    assert not model.mlp_gated
    assert rank.work("dense", ("act_fn", 5))[0]().shape == (5, 48)  # type: ignore[attr-defined]


def test_a_dense_mask_does_not_price_windows(tmp_path: Path) -> None:
    path = written(tmp_path, MISTRAL)
    options = MeasureOptions(str(path), "cpu", tmp_path / "perf", (1,), LIMITS, dtype="fp32")
    assert "the last 32 tokens" in "\n".join(dry_run(options))
    with pytest.raises(InputError, match=r'--attention is "packed", whose dense mask'):
        dry_run(replace(options, attention="packed"))


def test_no_context_beyond_every_window_is_planned(tmp_path: Path) -> None:
    def ops(fields: dict[str, Any]) -> Any:
        return operators(load_model(str(written(tmp_path, fields))), Layout(1, 1), FP32)

    assert (
        seen_limits(ops(MISTRAL), LIMITS).max_kv == WINDOW
        and seen_limits(ops(GEMMA), LIMITS) == LIMITS
    )
    attention = [
        point
        for point in points_of(ops(GEMMA), LIMITS, skew=False, experts=False)
        if point.table == "attention"
    ]
    assert attention == list(attention_points(LIMITS))


def test_every_preset_with_a_window_is_measurable() -> None:
    presets = (
        "google/gemma-2-2b",
        "google/gemma-3-27b-it",
        "bigcode/starcoder2-7b",
        "microsoft/Phi-3-mini-4k-instruct",
        "mistralai/Mistral-7B-v0.1",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "openai/gpt-oss-20b",
    )
    for name in presets:
        model = load_model(name)
        ops = [op for op in operators(model, Layout(1, 1), Dtypes()) if op.kind != "collective"]
        assert any(isinstance(op, Attention) and op.window for op in ops)
        assert unknown_operators(ops) == []


@pytest.mark.parametrize("batch", [[(1, 40)], [(7, 0)], [(5, 9), (1, 30), (1, 17), (1, 17)]])
def test_attention_with_sinks_agrees_with_plain_math(batch: list[tuple[int, int]]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra llmsim[profiler])")
    from llmsim.profiler.attention.attention import HeadShape, reference, usable_kernels
    from llmsim.profiler.attention.kernels import KERNELS, Buffers

    torch.manual_seed(len(batch))
    shape, cpu = HeadShape(8, 2, 16, sinks=True), torch.device("cpu")
    buffers = Buffers(torch, cpu, torch.float32, shape, batch)
    found, wanted = KERNELS["sdpa"].call(torch, buffers)(), reference(torch, buffers)
    assert torch.allclose(found, wanted, atol=1e-5)
    for index, (new, cached) in enumerate(
        batch
    ):  # the definition, for the last token of each sequence
        keys, values = (part[:, 0] for part in buffers.keys_values_of(index))
        logits = torch.cat((keys @ buffers.query_of(index)[-1, 0] / 4, buffers.sinks[:1]))
        assert torch.allclose(
            wanted[buffers.starts[index + 1] - 1, 0], logits.softmax(0)[:-1] @ values, atol=1e-5
        )
        assert len(keys) == new + cached
    good, reasons = usable_kernels(torch, cpu, torch.float32, shape)
    assert good == ["sdpa"] and "wrong by" in reasons["packed"]
