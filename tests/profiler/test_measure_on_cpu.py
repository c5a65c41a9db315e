"""Measuring with PyTorch on the CPU: kernels are right, a bundle is complete and resumes, an engine
is logged.
"""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.model import Dtypes, Layout, load_model, operators
from llmsim.profiler.bundle.plan import Limits

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.attention.attention import Attention, HeadShape, reference, usable_kernels  # noqa: E402
from llmsim.profiler.attention.kernels import KERNELS, Buffers  # noqa: E402
from llmsim.profiler.cli.measure import MeasureOptions, measure  # noqa: E402
from llmsim.profiler.device.timing import Stopwatch  # noqa: E402
from llmsim.profiler.moe.experts import Experts, routing, usable_kernel  # noqa: E402
from llmsim.profiler.rank.rank import measured_operators, refuse_unknown  # noqa: E402

CPU = torch.device("cpu")
TINY = {
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
MOE = {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture(autouse=True)
def few_threads() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "tiny.json"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(TINY, default_flow_style=True).replace("'", '"'))
    import json

    path.write_text(json.dumps(TINY))
    return path


def options(tiny: Path, out: Path, **changes: Any) -> MeasureOptions:
    base = MeasureOptions(
        model=str(tiny),
        hardware="cpu",
        out_root=out,
        degrees=(1,),
        limits=Limits(16, 2, 32, 4.0, 4.0),
        dtype="fp32",
        device="cpu",
        threads=1,
        clock="cpu",
        style="fused",
    )
    return dataclasses.replace(base, **changes)


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).open()))


@pytest.mark.parametrize("kernel", ["sdpa", "packed"])
@pytest.mark.parametrize(
    "batch", [[(1, 40)], [(7, 0)], [(5, 9), (1, 300), (1, 17), (1, 17)], [(4, 0), (6, 0)]]
)
def test_attention_kernels_agree_with_plain_math(kernel: str, batch: list[tuple[int, int]]) -> None:
    torch.manual_seed(len(batch))
    buffers = Buffers(torch, CPU, torch.float32, HeadShape(8, 2, 16), batch)
    found = KERNELS[kernel].call(torch, buffers)()
    assert torch.allclose(found, reference(torch, buffers), atol=1e-4)


def test_kernels_that_cannot_run_say_why() -> None:
    good, reasons = usable_kernels(torch, CPU, torch.float32, HeadShape(4, 2, 16))
    assert good == ["sdpa", "packed"] and all(
        "CUDA" in reasons[name] for name in ("flash", "triton")
    )


def test_a_wrong_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dict(KERNELS)
    broken["sdpa"] = dataclasses.replace(
        broken["sdpa"], call=lambda torch, buffers: lambda: buffers.query * 0
    )
    broken["packed"] = dataclasses.replace(
        broken["packed"], call=lambda torch, buffers: lambda: 1 / 0
    )
    monkeypatch.setattr("llmsim.profiler.attention.attention.KERNELS", broken)
    good, reasons = usable_kernels(torch, CPU, torch.float32, HeadShape(4, 2, 16))
    assert good == [] and "wrong by" in reasons["sdpa"] and "ZeroDivisionError" in reasons["packed"]


def test_experts_get_the_number_of_active_ones_asked_for(tmp_path: Path) -> None:
    import json

    (tmp_path / "moe.json").write_text(json.dumps(MOE))
    model = load_model(str(tmp_path / "moe.json"))
    op = next(
        op
        for op in operators(model, Layout(1, 1), Dtypes("fp32", "fp32", "fp32"))
        if op.name == "moe"
    )
    for active in (2, 3, 4):
        ids = routing(torch, CPU, 6, op.topk, active)
        assert ids.unique().numel() == active and all(
            len(set(row)) == op.topk for row in ids.tolist()
        )
    experts = Experts(torch, CPU, torch.float32, op, "loop")
    assert experts.work(6, 4)().shape == (6, op.hidden)  # type: ignore[attr-defined]
    assert usable_kernel(torch, CPU, torch.float32, op)[0] == "loop"


def test_time_grows_with_work() -> None:
    watch = Stopwatch(torch, CPU, clock="cpu", samples=5, row_s=0.2)
    small, large = (torch.randn(n, n) for n in (32, 512))
    assert (
        watch.eager(lambda: large @ large).median_us
        > 5 * watch.eager(lambda: small @ small).median_us
    )
    assert watch.graph(lambda: small @ small) is None
    both = watch.sequence([("a", lambda: small @ small), ("b", lambda: large @ large)])
    assert both["b"].median_us > both["a"].median_us > 0


def test_a_bundle_is_complete_priced_and_resumes(tiny: Path, tmp_path: Path) -> None:
    from llmsim.costs import compile_costs
    from tests.costs.builders import request

    out = tmp_path / "perf"
    folder = measure(options(tiny, out, budget_minutes=1e-6))
    assert yaml.safe_load((folder / "meta.yaml").read_text())["state"] == "budget"
    folder = measure(options(tiny, out))
    before = {
        name: (folder / "tp1" / name).read_bytes()
        for name in ("dense.csv", "per_sequence.csv", "attention.csv")
    }
    meta = yaml.safe_load((folder / "meta.yaml").read_text())
    assert meta["state"] == "complete" and meta["kernels"]["attention"] == {"tp1": "sdpa"}
    assert meta["memory"]["tp1"]["activation_peak_bytes"] >= 0
    (folder / "tp1" / "attention.csv").write_bytes(before["attention.csv"][:-200])
    measure(options(tiny, out))  # what was cut off is measured again, the rest is kept
    after = (folder / "tp1" / "attention.csv").read_bytes()
    kept = before["attention.csv"][:-200].rpartition(b"\n")[0]
    assert after.startswith(kept) and after.count(b"\n") == before["attention.csv"].count(b"\n")
    assert (folder / "tp1" / "dense.csv").read_bytes() == before["dense.csv"]
    assert all(
        float(row["time_us"]) > 0 and int(row["samples"]) > 1
        for row in rows(folder, "tp1/attention.csv")
    )
    config = load_model(str(tiny))
    dtypes = Dtypes("fp32", "fp32", "fp32")
    costs = compile_costs(
        request(config, "cpu", dtypes=dtypes, source="bundle", profile_dirs=(out,),
                max_tokens=16, max_seqs=2, max_model_len=512, cuda_graph_sizes=())
    )  # fmt: skip
    assert costs.from_bundle and all((op.ps[1:] > 0).all() for op in costs.ops)


def test_another_models_folder_is_refused(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "perf"
    measure(options(tiny, out, budget_minutes=1e-6))
    with pytest.raises(InputError, match="another model, device or kernel choice"):
        measure(options(tiny, out, budget_minutes=1e-6, style="eager"))
    with pytest.raises(InputError, match=r"--attention is .*flash.*CUDA"):
        measure(options(tiny, tmp_path / "other", attention="flash"))
    with pytest.raises(InputError, match="sees no CUDA device"):
        measure(options(tiny, tmp_path / "other", device="cuda"))


def test_operators_that_cannot_be_measured_are_named() -> None:
    model = load_model("meta-llama/Llama-3.1-8B")
    ops = measured_operators(model, Layout(1, 1), Dtypes())
    refuse_unknown(model, ops)
    norm = next(op for op in ops if op.name == "layernorm")
    with pytest.raises(InputError, match="the operators odd_norm cannot be measured"):
        refuse_unknown(model, [*ops, replace(norm, name="odd_norm")])


def test_layers_of_a_sharded_rank_have_its_shapes(tmp_path: Path) -> None:
    from llmsim.profiler.device.device import describe
    from llmsim.profiler.rank.rank import Rank

    model, dtypes = load_model("meta-llama/Llama-3.1-8B"), Dtypes("fp32", "fp32", "fp32")
    small = replace(
        model, num_layers=1, hidden_size=256, intermediate_size=512, vocab_size=640, head_dim=8
    )
    rank = Rank(torch, CPU, small, Layout(4, 1), dtypes, describe(torch, CPU), "eager", "sdpa")
    q, k, v = rank.work("dense", ("qkv_proj", 3))[0]()  # type: ignore[misc]
    assert [part.shape for part in (q, k, v)] == [(3, 64), (3, 16), (3, 16)]
    (out,) = rank.work("dense", ("down_proj", 3))[0]()  # type: ignore[misc]
    assert out.shape == (3, 256)
    names = [name for name, _ in rank.program(4)]
    assert (
        names[0] == "embedding" and names.count("layernorm") == 2 and names[-1] == "final_layernorm"
    )


def test_attention_rotates_its_buffers() -> None:
    attention = Attention(
        torch,
        CPU,
        torch.float32,
        HeadShape(4, 2, 16),
        "packed",
        layers=4,
        cache_bytes=1 << 20,
        layer_share=4,
    )
    work, once = attention.work([(1, 8), (3, 0)])
    first, second = work(), work()
    assert once is not None and not torch.equal(first, second)
    assert attention.layer_us(10.0, 8.0) == 12.0


def test_an_engine_is_logged_token_by_token(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "transformers", minversion="5.20", reason="transformers 5.20 is not installed"
    )
    from llmsim.profiler.serve.serve_log import ServeOptions, serve_log

    output = tmp_path / "log"
    [(_, log)] = serve_log(
        ServeOptions(
            str(tiny),
            "synthetic:n=4,rate=100,input=uniform:5-20,output=uniform:2-6,seed=1",
            output,
            engine="transformers",
            device="cpu",
            dtype="fp32",
            threads=1,
            max_num_seqs=2,
            max_num_batched_tokens=16,
            clock="cpu",
        )
    )
    for each in log.stamps:
        assert len(each.tokens) == each.output_toks and each.tokens == sorted(each.tokens)
        assert each.arrival <= each.scheduled <= each.tokens[0]  # type: ignore[operator]
    assert all(
        len(step.batch) <= 2 and sum(new for new, _ in step.batch) <= 16 for step in log.steps
    )
    assert sum(new for step in log.steps for new, _ in step.batch) == sum(
        each.input_toks + each.output_toks - 1 for each in log.stamps
    )
    assert (output / "requests.jsonl").is_file() and (output / "cluster.json").is_file()
