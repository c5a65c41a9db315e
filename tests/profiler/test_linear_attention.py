"""Layers that keep a state: their kernels against the recurrence token by token, measured on the
CPU, simulated.
"""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.model import Dtypes, Layout, LinearAttention, load_model, operators
from llmsim.profiler.bundle.plan import Limits
from llmsim.profiler.rank.dense import unknown_operators
from tests.profiler.tiny_models import TINY, column, simulated, written
from tests.profiler.tiny_models import measured as measured_within

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.kernels.choice import relative_error  # noqa: E402
from llmsim.profiler.state_space.linear_attention import LinearLayer  # noqa: E402
from llmsim.profiler.state_space.recurrence import by_token, make_inputs, scan, update  # noqa: E402
from llmsim.profiler.state_space.recurrence_kernels import KERNELS, usable_kernel  # noqa: E402

CPU, FP32 = torch.device("cpu"), Dtypes("fp32", "fp32", "fp32")
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
}
SPACE = {"mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_n_heads": 8}
QWEN = {
    **TINY,
    **EXPERTS,
    **DELTA,
    "model_type": "qwen3_next",
    "full_attention_interval": 3,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 32,
    "attention_bias": False,
}
QWEN35 = {
    "model_type": "qwen3_5", "tie_word_embeddings": True,
    "text_config": {**TINY, **DELTA, "model_type": "qwen3_5_text", "full_attention_interval": 3,
                    "attn_output_gate": True},
}  # fmt: skip
GRANITE = {
    **TINY,
    **SPACE,
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention", "mamba"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 32,
    "position_embedding_type": "nope",
}
NEMOTRON = {
    **TINY,
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*-",
    "num_hidden_layers": 4,
    "conv_kernel": 4,
    "mamba_head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_proj_bias": False,
    "n_groups": 2,
    "ssm_state_size": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "moe_shared_expert_intermediate_size": 32,
    "topk_group": 1,
    "use_conv_bias": True,
    "attention_bias": False,
    "mlp_bias": False,
    "mamba_ssm_cache_dtype": "float32",
}
FALCON = {**TINY, **SPACE, "model_type": "falcon_h1", "mamba_rms_norm": False}
BAMBA = {**TINY, **SPACE, "model_type": "bamba", "attn_layer_indices": [1]}
MINIMAX = {
    **TINY,
    "model_type": "minimax_text_01",
    "attn_type_list": [0, 0, 1],
    **EXPERTS,
    "num_local_experts": 4,
}
FAMILIES = (QWEN, QWEN35, GRANITE, NEMOTRON, FALCON, BAMBA, MINIMAX)
SMALL = Limits(max_tokens=4, max_seqs=2, max_kv=16, chunk_factor=4.0, kv_factor=4.0)


def measured(path: Path, **changes: Any) -> Path:
    return measured_within(path, limits=SMALL, **changes)


@pytest.fixture(autouse=True)
def no_gradients() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(("delta", "lightning", "state_space")),
    tokens=st.sampled_from((1, 2, 63, 64, 65, 130)),
    heads=st.sampled_from(((1, 1), (2, 2), (1, 3), (2, 4))),
    dims=st.sampled_from(((8, 8), (16, 4), (4, 16))),
    seed=st.integers(0, 1000),
)
def test_the_chunks_agree_with_the_recurrence(
    kind: Any, tokens: int, heads: Any, dims: Any, seed: int
) -> None:
    torch.manual_seed(seed)
    if kind == "lightning":
        heads, dims = (heads[1], heads[1]), (dims[0], dims[0])
    linear = LinearAttention(heads[0], dims[0], heads[1], dims[1], 4, kind=kind)
    for run, count in ((scan, 1), (update, 5)):
        inputs = make_inputs(
            torch, CPU, torch.float32, linear, tokens if count == 1 else count, count, torch.float32
        )
        wanted, states = by_token(torch, inputs)
        untouched = inputs.state[0].clone()
        found = run(torch, inputs)
        assert relative_error(found, wanted) < 1e-5 and found.shape == (
            len(inputs.mixed),
            heads[1],
            dims[1],
        )
        assert relative_error(inputs.states[inputs.slots.long()], states) < 1e-5
        assert torch.equal(inputs.state[0], untouched), "the slot that no sequence has"


def test_a_scan_goes_on_from_the_state_that_it_left() -> None:
    torch.manual_seed(1)
    linear = LinearAttention(2, 8, 4, 8, 4)
    whole = make_inputs(torch, CPU, torch.float32, linear, 100, 1, torch.float32)
    wanted, _ = by_token(torch, whole)
    parts = []
    for tokens in (slice(0, 70), slice(70, 100)):  # one state, cut where no chunk ends
        part = replace(whole, mixed=whole.mixed[tokens], gates=whole.gates[:, tokens])
        parts.append(scan(torch, part))
    assert relative_error(torch.cat(parts), wanted) < 1e-5


@pytest.mark.parametrize("norm", ["head", "whole", "none"])
@pytest.mark.parametrize("kind", ["delta", "state_space"])
def test_convolution_and_norm_are_checked_against_plain_math(kind: Any, norm: Any) -> None:
    linear = LinearAttention(2, 8, 4, 16, 4, kind=kind, norm=norm, conv_bias=kind == "state_space")
    layer = LinearLayer(torch, CPU, torch.float32, linear, torch.float32)
    assert set(layer.kernels.values()) == {"torch"} and all(
        "CUDA" in why for why in layer.reasons.values()
    )


def test_a_wrong_kernel_of_a_state_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmsim.profiler.state_space import recurrence_kernels

    def forgets(torch: Any, inputs: Any) -> Any:
        def run() -> Any:
            inputs.states[inputs.slots.long()] = 0.0
            return scan(torch, inputs)

        return run

    linear = LinearAttention(2, 8, 4, 8, 4)
    broken = {**KERNELS, ("delta", "scan"): {"torch": forgets}}
    monkeypatch.setattr(recurrence_kernels, "KERNELS", broken)
    name, reasons = usable_kernel(torch, CPU, torch.float32, linear, torch.float32, "scan")
    assert name == "" and "wrong by" in reasons["torch"]


@pytest.mark.parametrize("fields", FAMILIES, ids=lambda fields: str(fields["model_type"]))
def test_a_model_that_keeps_states_is_measured_and_simulated(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    from llmsim.costs import compile_costs
    from tests.costs.builders import request

    path = written(tmp_path, fields)
    folder = measured(path) / "tp1"
    model = load_model(str(path))
    needed = {
        op.name
        for op in operators(model, Layout(1, 1), FP32)
        if op.kind not in ("moe", "attention")
    }
    dense, heads = (
        set(column(folder / name, "layer")) for name in ("dense.csv", "per_sequence.csv")
    )
    assert needed == dense | heads and "linear_state" in heads and "linear_attention" in dense
    costs = compile_costs(
        request(
            model,
            "cpu",
            dtypes=FP32,
            source="bundle",
            profile_dirs=(tmp_path / "perf",),
            max_tokens=4,
            max_seqs=2,
            max_model_len=512,
            cuda_graph_sizes=(),
        )
    )
    by_name = {op.name: op for op in costs.ops}
    assert costs.from_bundle and all(op.source.startswith("profile bundle") for op in costs.ops)
    assert (
        by_name["linear_attention"].feature == "prefills"
        and by_name["linear_state"].feature == "sequences"
    )
    rows = {
        row["layer"]: row
        for row in csv.DictReader((folder / "dense.csv").open())
        if row["tokens"] == "4"
    }
    once = next(
        float(row["time_us"]) for row in csv.DictReader((folder / "per_sequence.csv").open())
        if (row["layer"], row["sequences"]) == ("linear_state", "1")
    )  # fmt: skip
    scanned = float(rows["linear_attention"]["time_us"])
    assert by_name["linear_attention"].ps[4] == pytest.approx(max(scanned - once, 0) * 1e6, abs=2)
    for name in rows.keys() & {
        "moe_gate",
        "shared_expert_up_proj",
    }:  # measured apart from the experts
        assert by_name[name].ps[4] == pytest.approx(float(rows[name]["time_us"]) * 1e6, abs=1)
    found = simulated(path, [(20, 8), (40, 6)])
    assert [(int(row["input"]), int(row["output"])) for row in found] == [(20, 8), (40, 6)]


def test_what_was_measured_of_a_state_resumes(tmp_path: Path) -> None:
    path = written(tmp_path, NEMOTRON)
    folder = measured(path, budget_minutes=1e-6) / "tp1"
    folder = measured(path) / "tp1"
    before = {
        name: (folder / name).read_bytes() for name in ("dense.csv", "per_sequence.csv", "moe.csv")
    }
    (folder / "per_sequence.csv").write_bytes(before["per_sequence.csv"][:-150])
    measured(path)
    after = {name: (folder / name).read_bytes() for name in before}
    assert after["dense.csv"] == before["dense.csv"] and after["moe.csv"] == before["moe.csv"]
    keys = [
        sorted(line.split(b",")[:2] for line in each["per_sequence.csv"].splitlines())
        for each in (before, after)
    ]
    assert keys[0] == keys[1]


def test_every_preset_with_states_is_measurable_at_its_degrees() -> None:
    from llmsim.model import layout_problem, model_names

    found = 0
    for name in model_names():
        model = load_model(name)
        for tp in (1, 2, 4):
            if model.linear is None or layout_problem(model, Layout(tp, 1)):
                continue
            ops = [
                op for op in operators(model, Layout(tp, 1), Dtypes()) if op.kind != "collective"
            ]
            assert unknown_operators(ops) == []
            found += 1
    assert found >= 12


def test_a_rank_has_its_share_of_heads(tmp_path: Path) -> None:
    from llmsim.profiler.device.device import describe
    from llmsim.profiler.rank.rank import Rank

    model = load_model(str(written(tmp_path, QWEN)))
    rank = Rank(torch, CPU, model, Layout(2, 1), FP32, describe(torch, CPU), "fused", "sdpa")
    assert rank.work("dense", ("linear_attention", 70))[0]().shape == (70, 2, 8)  # type: ignore[attr-defined]
    assert rank.work("per_sequence", ("linear_state", 3))[0]().shape == (3, 2, 8)  # type: ignore[attr-defined]
    assert rank.work("dense", ("linear_conv", 5))[0]().shape == (5, 2 * 16 + 2 * 8)  # type: ignore[attr-defined]
    assert rank.work("dense", ("linear_norm", 5))[0]().shape == (5, 16)  # type: ignore[attr-defined]
    assert rank.work("dense", ("attention_gate", 5))[0]().shape == (5, 32)  # type: ignore[attr-defined]
