"""Models with latent attention, whole and sparse: their kernels are right, and what is measured is
simulated.
"""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.model import Dtypes, Layout, load_model, model_names, operators
from llmsim.profiler.bundle.plan import attention_table, points_of, seen_limits
from llmsim.profiler.cli.dry_run import dry_run
from llmsim.profiler.cli.measure import MeasureOptions
from llmsim.profiler.rank.dense import unknown_operators
from tests.profiler.test_tables_and_plan import UNMEASURED
from tests.profiler.tiny_models import LIMITS, TINY, column, measured, simulated, written

WIDTHS = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 3,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
}
TOPK = 32
LATENT = {**TINY, **WIDTHS, "model_type": "deepseek_v3", "q_lora_rank": 24}
PLAIN = {**TINY, **WIDTHS, "model_type": "deepseek_v2", "q_lora_rank": None}
SPARSE = {
    **LATENT,
    "model_type": "deepseek_v32",
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": TOPK,
}
for fields in (LATENT, PLAIN, SPARSE):
    fields.pop("head_dim", None)
BLOCKS = {
    "quant_method": "fp8",
    "weight_block_size": [16, 16],
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
}
NARROW = {**LATENT, "quantization_config": BLOCKS}
FP32 = Dtypes("fp32", "fp32", "fp32")
BATCHES = [
    [(1, 40)],
    [(7, 0)],
    [(5, 9), (1, 300), (1, 17), (1, 17)],
    [(4, 0), (6, 0)],
    [(3, 5), (3, 5), (1, 0)],
]


def the_torch() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra llmsim[profiler])")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    return torch


def shapes() -> list[Any]:
    from llmsim.profiler.attention.indexer import IndexerShape
    from llmsim.profiler.attention.mla import LatentShape
    from llmsim.profiler.attention.sparse_kernels import SparseShape

    return [
        LatentShape(3, 20, 12, 8, 10),
        SparseShape(4, 32, 16, 8, 16, 16),
        IndexerShape(4, 16, 16),
    ]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("index", range(3), ids=["latent", "sparse", "indexer"])
def test_the_plain_kernels_agree_with_plain_math(index: int, batch: list[tuple[int, int]]) -> None:
    torch = the_torch()
    from llmsim.profiler.attention.attention import family_of

    torch.manual_seed(len(batch))
    shape, cpu = shapes()[index], torch.device("cpu")
    family = family_of(shape)
    (name,) = {"sdpa", "plain"} & set(family.kernels)
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        buffers = family.buffers(torch, cpu, dtype, shape, batch, 16)
        call = family.kernels[name].call(torch, buffers)
        call()
        assert family.error(torch, buffers, call()) < most


@pytest.mark.parametrize("index", range(3), ids=["latent", "sparse", "indexer"])
def test_a_kernel_that_is_wrong_or_fails_is_not_used(
    index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = the_torch()
    from llmsim.profiler.attention import attention

    shape, cpu = shapes()[index], torch.device("cpu")
    family = attention.family_of(shape)
    names = list(family.kernels)
    assert attention.usable_kernels(torch, cpu, torch.float32, shape)[0] == names[-1:]

    def scrambled(torch: Any, buffers: Any) -> Any:
        """The results of some tokens in the places of others."""
        right = family.kernels[names[-1]].call(torch, buffers)

        def run() -> Any:
            found = right()
            return (
                found.flip(0)
                if index == 2
                else tuple(None if part is None else part.flip(0) for part in found)
            )

        return run

    def missing(torch: Any, device: Any, dtype: Any) -> str:
        raise OSError("libcuda is not there")

    kernels = {
        "wrong": dataclasses.replace(family.kernels[names[-1]], call=scrambled),
        "broken": dataclasses.replace(family.kernels[names[-1]], missing=missing),
    }
    monkeypatch.setattr(
        attention, "family_of", lambda _: dataclasses.replace(family, kernels=kernels)
    )
    good, reasons = attention.usable_kernels(torch, cpu, torch.float32, shape)
    assert (
        good == []
        and "wrong by" in reasons["wrong"]
        and "libcuda is not there" in reasons["broken"]
    )


def test_decodes_come_first_and_go_where_an_engine_sends_them() -> None:
    torch = the_torch()
    from llmsim.profiler.attention.mla import LatentBuffers

    buffers = LatentBuffers(
        torch, torch.device("cpu"), torch.float32, shapes()[0], [(9, 4), (1, 7), (3, 0), (1, 2)]
    )
    assert [new for new, _ in buffers.batch] == [1, 1, 3, 9]
    assert [buffers.decodes(most, uniform=False) for most in (1, 3, 8, 9)] == [2, 3, 3, 4]
    assert buffers.decodes(9, uniform=True) == 2
    prompts = LatentBuffers(
        torch, torch.device("cpu"), torch.float32, shapes()[0], [(9, 4), (5, 0)]
    )
    assert prompts.decodes(4, uniform=False) == prompts.decodes(4, uniform=True) == 0
    assert prompts.decodes(5, uniform=True) == 1


@pytest.mark.parametrize(
    "fields", [LATENT, PLAIN, NARROW], ids=["queries ranked", "queries plain", "fp8"]
)
def test_a_model_with_latent_attention_is_measured_and_simulated(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path, fields)
    folder = measured(path) / "tp1"
    layers = set(column(folder / "dense.csv", "layer"))
    own = {"qkv_a_proj", "q_b_proj"} if fields is not PLAIN else {"kv_a_proj", "q_proj"}
    assert (
        layers >= {"latent_norm", "kv_b_proj", "rotary_emb", "o_proj", *own}
        and "attention" not in layers
    )
    assert not (folder / "indexer.csv").exists()
    lengths = [(20, 8), (200, 60)]
    found = simulated(path, lengths)
    assert [(int(row["input"]), int(row["output"])) for row in found] == lengths
    assert all(0 < int(row["TTFT"]) < int(row["end_time"]) - int(row["arrival"]) for row in found)
    assert len(set(json.loads(found[1]["ITL"]))) > 1


def test_a_model_with_sparse_attention_is_measured_and_simulated(tmp_path: Path) -> None:
    path = written(tmp_path, SPARSE)
    folder = measured(path) / "tp1"
    assert {"indexer_q_proj", "indexer_k_proj", "indexer_norm"} <= set(
        column(folder / "dense.csv", "layer")
    )
    longest = {
        name: max(map(int, column(folder / f"{name}.csv", "kv_decode")))
        for name in ("attention", "indexer")
    }
    assert longest == {"attention": TOPK, "indexer": LIMITS.max_kv}, (
        "no query attends to more than was chosen"
    )
    assert all(int(row["TTFT"]) > 0 for row in simulated(path, [(20, 8), (200, 60)]))

    def scaled(name: str, factor: float) -> None:
        rows = list(csv.DictReader((folder / name).open()))
        for row in rows:
            row["time_us"] = str(float(row["time_us"]) * factor)
        with (folder / name).open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)

    scaled(
        "indexer.csv", 0.0
    )  # what is left grows with what a query sees, no further than what is chosen
    scaled("dense.csv", 0.0)
    scaled("per_sequence.csv", 0.0)
    times = [json.loads(row["ITL"]) for row in simulated(path, [(TOPK, 60), (200, 60)])]
    both = [*times[0], *times[1]]
    assert 0 < max(both) <= min(both) + 1, "ps are rounded to ns"
    (folder / "indexer.csv").unlink()
    with pytest.raises((AssertionError, InputError)):
        simulated(path, [(20, 8)])


def test_an_interrupted_sparse_profile_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path, SPARSE)
    folder = measured(path, budget_minutes=1e-6) / "tp1"
    measured(path)
    before = {
        name: (folder / name).read_bytes() for name in ("attention.csv", "indexer.csv", "dense.csv")
    }
    (folder / "indexer.csv").write_bytes(before["indexer.csv"][:-100])
    measured(path)
    after = (folder / "indexer.csv").read_bytes()
    assert after.startswith(before["indexer.csv"][:-100].rpartition(b"\n")[0])
    assert after.count(b"\n") == before["indexer.csv"].count(b"\n")
    assert all(
        (folder / name).read_bytes() == before[name] for name in ("attention.csv", "dense.csv")
    )


def test_a_sharded_rank_has_its_shapes(tmp_path: Path) -> None:
    torch = the_torch()
    from llmsim.profiler.device.device import describe
    from llmsim.profiler.rank.rank import Rank

    cpu, model = torch.device("cpu"), load_model(str(written(tmp_path, SPARSE)))
    info = describe(torch, cpu)
    rank = Rank(torch, cpu, model, Layout(2, 1), FP32, info, "fused", "sdpa", max_decodes=4)
    latents, whole = rank.attention_work([(1, 40), (3, 0)])[0]()  # type: ignore[misc]
    assert latents.shape == (4, 2, 32) and whole is None, (
        "prompts attend on the compressed cache as well"
    )
    assert rank.attention_work([(1, 40), (3, 0)], "indexer")[0]().shape == (4, TOPK)  # type: ignore[attr-defined]
    absorbed, values = rank.work("dense", ("kv_b_proj", 4))[0]()  # type: ignore[misc]
    assert absorbed.shape == (4, 2, 32) and values.shape == (4, 2, 16), (
        "decodes: both products of two heads"
    )
    (up,) = rank.work("dense", ("kv_b_proj", 5))[0]()  # type: ignore[misc]
    assert up.shape == (5, 2 * (16 + 16))
    query, key = rank.work("dense", ("rotary_emb", 5))[0]()  # type: ignore[misc]
    assert query.shape == (5, 2, 24) and key.shape == (5, 1, 8)
    narrow, _, weights = rank.work("dense", ("indexer_norm", 5))[0]()  # type: ignore[misc]
    assert (
        narrow.shape == (5, 4, 16)
        and narrow.dtype == torch.float8_e4m3fn
        and weights.shape == (5, 4)
    )
    names = [name for name, _ in rank.program(4)]
    assert names.count("") == 2 * 3 and names.count("latent_norm") == 3, (
        "an indexer and an attention in each layer"
    )
    eager = Rank(torch, cpu, model, Layout(2, 1), FP32, info, "eager", "sdpa", max_decodes=4)
    parts = eager.work("dense", ("qkv_a_proj", 3))[0]()
    assert [part.shape[1] for part in parts] == [24, 40]  # type: ignore[attr-defined]
    assert eager.work("dense", ("kv_b_proj", 4))[0]()[0].shape == (4, 64)  # type: ignore[index]


def test_rotation_of_pairs_is_the_same_in_both_styles() -> None:
    torch = the_torch()
    from llmsim.model import LatentAttention
    from llmsim.profiler.attention.mla_layers import LatentLayers

    made = []
    for eager in (False, True):
        torch.manual_seed(3)
        layers = LatentLayers(
            torch,
            LatentAttention(0, 20, 12, 8, 10),
            2,
            eager,
            0,
            torch.randn,
            lambda x: x,
            lambda _: 1,
        )
        op = next(
            op
            for op in operators(load_model("deepseek-ai/DeepSeek-V2-Lite"), Layout(1, 1), FP32)
            if op.name == "rotary_emb"
        )
        work = layers.work(op, 5)
        assert work is not None
        made.append([part.flatten().sort().values for part in work()])  # type: ignore[attr-defined]
    assert made[0][0].shape == made[1][0].shape
    assert torch.isfinite(made[0][0]).all()


def test_quantised_weights_expand_the_context_of_prompts(tmp_path: Path) -> None:
    torch = the_torch()
    from llmsim.model import resolve_dtypes
    from llmsim.profiler.device.device import describe
    from llmsim.profiler.rank.rank import Rank

    for fields, expands in ((NARROW, True), ({**SPARSE, "quantization_config": BLOCKS}, False)):
        path = written(tmp_path, fields)
        model, cpu = load_model(str(path)), torch.device("cpu")
        dtypes = resolve_dtypes(model, "fp32")
        rank = Rank(
            torch,
            cpu,
            model,
            Layout(1, 1),
            dtypes,
            describe(torch, cpu),
            "fused",
            "sdpa",
            max_decodes=4,
        )
        made: list[int] = []
        layer = rank._kernels.quantised.layer

        def counted(op: Any, width: int, layer: Any = layer, made: list[int] = made) -> Any:
            product, size = layer(op, width)
            assert op.name == "kv_b_proj" and width == 4 * (16 + 16)

            def run(x: Any) -> Any:
                made.append(len(x))
                return product(x)

            return run, size

        rank._kernels.quantised.layer = counted  # type: ignore[method-assign]
        work = rank.attention_work([(3, 40), (1, 7)])[0]
        made.clear()
        latents, whole = work()  # type: ignore[misc]
        assert made == ([40] if expands else []), "of the new tokens they are rows of dense.csv"
        assert len(latents) == (1 if expands else 4) and (whole is not None) == expands
        assert len(rank.work("dense", ("kv_b_proj", 4))[0]()) == 2, (
            "decodes multiply by copies in the model's type"
        )  # type: ignore[arg-type]


def test_whole_experts_are_measured_whatever_the_degree(tmp_path: Path) -> None:
    torch = the_torch()
    from llmsim.profiler.device.device import describe
    from llmsim.profiler.rank.rank import Rank

    cpu = torch.device("cpu")
    model = load_model(str(written(tmp_path, {**LATENT, "first_k_dense_replace": 1})))
    rank = Rank(torch, cpu, model, Layout(2, 1), FP32, describe(torch, cpu), "fused", "sdpa")
    assert rank.expert_op is not None and rank.expert_op.moe_inter == 32


def test_what_transformers_cannot_batch_is_refused(tmp_path: Path) -> None:
    options = MeasureOptions(
        str(written(tmp_path, LATENT)), "cpu", tmp_path / "perf", (1,), LIMITS, dtype="fp32"
    )
    with pytest.raises(
        InputError, match=r'--attention is "packed", and transformers does not batch'
    ):
        dry_run(dataclasses.replace(options, attention="packed"))
    the_torch()
    with pytest.raises(
        InputError, match=r'--attention is "paged": for this model it may be auto, sdpa, flash'
    ):
        measured(written(tmp_path, LATENT), attention="paged")


def test_an_engine_that_cannot_batch_it_is_not_logged(tmp_path: Path) -> None:
    from llmsim.profiler.serve.serve_log import ServeOptions
    from llmsim.profiler.serve.serve_transformers import replay

    options = ServeOptions(
        str(written(tmp_path, LATENT)),
        "synthetic:n=1,rate=1,input=fixed:5,output=fixed:2,seed=1",
        tmp_path / "log",
        engine="transformers",
        device="cpu",
        dtype="fp32",
    )
    with pytest.raises(InputError, match="does not run latent attention"):
        replay(options, [])


def test_every_preset_with_latent_attention_is_measurable() -> None:
    found = 0
    for name in model_names():
        model = load_model(name)
        if model.latent is None or name in UNMEASURED:
            continue
        found += 1
        ops = [op for op in operators(model, Layout(1, 1), Dtypes()) if op.kind != "collective"]
        assert unknown_operators(ops) == []
        tables = {point.table for point in points_of(ops, LIMITS, skew=True, experts=True)}
        assert ("indexer" in tables) == (model.indexer is not None)
        assert {attention_table(op) for op in ops} - {""} <= tables
        if model.indexer is not None:
            wide = dataclasses.replace(LIMITS, max_kv=1 << 20)
            assert seen_limits(ops, wide).max_kv == model.indexer.topk
            assert seen_limits(ops, wide, "indexer") == wide
    assert found >= 7


def test_a_dry_run_says_what_latents_are(tmp_path: Path) -> None:
    options = MeasureOptions("zai-org/GLM-5", "X", tmp_path / "perf", (4,), LIMITS)
    lines = "\n".join(dry_run(options))
    assert (
        "attention_sparse: 16 query heads on latents of 576, that see 2048 chosen tokens" in lines
    )
    assert "indexer: 32 heads of 128 that choose 2048 tokens" in lines and ", indexer " in lines
