"""The parts of the profiler that need no PyTorch: growing tables, the plan, summaries, replay jobs,
cluster files.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config.errors import InputError
from llmsim.model import load_model, model_names
from llmsim.profiler.bundle.plan import (
    Limits,
    attention_points,
    expert_points,
    geometric,
    layer_points,
    skew_points,
    token_grid,
)
from llmsim.profiler.bundle.tables import GrowingTable
from llmsim.profiler.cli.command import main
from llmsim.profiler.cli.dry_run import dry_run
from llmsim.profiler.cli.measure import TABLES, MeasureOptions
from llmsim.profiler.device.clock import ReplayClock
from llmsim.profiler.device.timing import summary
from llmsim.profiler.serve.serve_log import (
    Log,
    ServeOptions,
    Stamps,
    Step,
    jobs_of,
    summary_of,
    write_log,
)


def test_a_table_keeps_what_it_has_and_drops_half_a_row(tmp_path: Path) -> None:
    path = tmp_path / "dense.csv"
    table = GrowingTable(path, ("layer", "tokens"), ("time_us",))
    table.add(("o_proj", 1), {"time_us": 3.5})
    table.add(("o_proj", 2), {"time_us": 4.5})
    with path.open("a") as stream:
        stream.write("o_proj,4")  # the power went
    again = GrowingTable(path, ("layer", "tokens"), ("time_us",))
    assert ("o_proj", 2) in again and ("o_proj", 4) not in again and len(again) == 2
    again.add(("o_proj", 4), {"time_us": 6})
    assert path.read_text().splitlines() == [
        "layer,tokens,time_us",
        "o_proj,1,3.5",
        "o_proj,2,4.5",
        "o_proj,4,6",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_of_the_table(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path / "dense.csv", ("layer", "tokens"), ("time_us",))
    table.add(("o_proj", 1), {"time_us": 3.5})
    table.path = Path("/dev/full")
    with pytest.raises(
        InputError,
        match=r"/dev/full: cannot be written \(No space left on device\); what was measured",
    ):
        table.add(("o_proj", 2), {"time_us": 4.5})
    assert ("o_proj", 2) not in table and ("o_proj", 1) in table


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"t\.csv:1:1: the columns are a,b"):
        GrowingTable(tmp_path / "t.csv", ("a",), ("c",))


@given(first=st.integers(1, 50), last=st.integers(50, 5000), factor=st.floats(1.1, 4))
def test_grids_begin_and_end_where_they_should(first: int, last: int, factor: float) -> None:
    values = geometric(first, last, factor)
    assert values[0] == first and values[-1] == last and values == sorted(set(values))
    assert all(b <= (a + 1) * factor + 1 for a, b in pairwise(values))


@given(last=st.integers(1, 9000))
def test_every_small_batch_is_measured(last: int) -> None:
    grid = token_grid(last)
    assert grid[-1] == last and set(range(1, min(last, 16) + 1)) <= set(grid)


def test_the_first_stage_makes_a_bundle() -> None:
    limits = Limits(max_tokens=256, max_seqs=8, max_kv=512)
    points = list(attention_points(limits))
    assert len({point.key for point in points}) == len(points)
    first = [point.key for point in points if point.stage == 0]
    assert any(key[0] == 0 and key[2] == 8 for key in first) and any(
        key[0] == 256 and key[2] == 0 for key in first
    )
    assert all(key[0] == 0 or key[2] == 0 for key in first), "mixed batches can wait"
    assert {point.key[0] for point in layer_points("dense", ["a"], 64)} == {"a"}
    assert all(active <= tokens * 2 for tokens, active in (p.key for p in expert_points(64, 8, 2)))  # type: ignore[operator]
    assert all(kv * skew <= 512 for _, kv, skew in (p.key for p in skew_points(limits)))  # type: ignore[operator]


def test_a_dry_run_needs_no_device_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "measure",
        "Qwen/Qwen3-30B-A3B",
        "--hardware",
        "X",
        "--tp",
        "1,4",
        "--out-root",
        str(tmp_path / "p"),
    ]
    small = [
        "--max-num-batched-tokens",
        "64",
        "--max-num-seqs",
        "4",
        "--attention-max-kv",
        "64",
        "--dry-run",
    ]
    assert main([*arguments, *small]) == 0
    out = capsys.readouterr().out
    assert not (tmp_path / "p").exists()
    assert (
        "GEMM from 2048 to 5120" in out and "GEMM from 2048 to 1280" in out
    )  # qkv of one rank and of four
    assert "128 experts of width 768 on 2048, 8 for each token" in out
    assert (
        "moe 25" in out.split("tp4:")[0] and "moe 25" not in out.split("tp4:")[1]
    )  # experts once for all degrees
    folder = tmp_path / "p" / "X" / "Qwen" / "Qwen3-30B-A3B" / "bf16" / "tp4"
    table = GrowingTable(folder / "per_sequence.csv", *TABLES["per_sequence"])
    table.add(("sampler", 2), {})
    assert main([*arguments, *small]) == 0
    left = re.search(r"tp4: (\d+) rows .*, (\d+) of them to be measured", capsys.readouterr().out)
    assert left is not None and int(left[2]) == int(left[1]) - 1
    assert (
        main(
            [
                *arguments[:1],
                "deepseek-ai/DeepSeek-V2-Lite",
                *arguments[2:],
                *small,
                "--attention",
                "packed",
            ]
        )
        == 2
    )
    assert "does not batch latent attention" in capsys.readouterr().err


def test_a_summary_is_the_median_with_its_spread() -> None:
    timing = summary([10.0, 30.0, 20.0])
    assert (timing.median_us, timing.samples) == (20.0, 3) and timing.spread == pytest.approx(1.0)


def test_replay_jobs_count_from_the_first_arrival(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"input_toks":3,"output_toks":2,"arrival_time_ns":5000000000,"request_id":"x"}\n'
    )
    (job,) = jobs_of(str(trace), 0)
    assert (job.request_id, job.arrival_s, job.input_tokens, job.output_tokens) == ("x", 0.0, 3, 2)
    call = '{"input_toks":3,"output_toks":2}'
    trace.write_text(f'{{"session_id":"s","arrival_time_ns":0,"sub_requests":[{call},{call}]}}\n')
    with pytest.raises(InputError, match="sessions"):
        jobs_of(str(trace), 0)


def test_the_processors_clock_skips_to_the_next_arrival_when_idle() -> None:
    clock = ReplayClock("cpu")
    due = clock.now() + 3600.0
    clock.wait_until(due, lambda: True)
    assert due <= clock.now() < due + 60


def test_a_log_reads_back_as_a_recording(tmp_path: Path) -> None:
    from llmsim.config import load_cluster
    from llmsim.validation import read_recording

    stamps = [
        Stamps(str(i), 5, 3, i + 0.0, i + 0.1, i + 0.2, [i + 1.0, i + 1.5, i + 2.0])
        for i in range(2)
    ]
    steps = [Step(0.0, 1.0, ((5, 0),), 0.9), Step(1.0, 1.5, ((1, 5),), 0.3)]
    instance = {
        "engine_profile": "transformers-5",
        "max_num_seqs": 8,
        "num_gpu_blocks_override": 9,
        "block_size": 256,
    }
    log = Log("transformers", stamps, steps, {"device": "cpu", "instance": instance})
    write_log(ServeOptions("meta-llama/Llama-3.1-8B", "trace.jsonl", tmp_path), log)
    recording = read_recording(tmp_path / "requests.jsonl")
    assert recording.ttft_s == pytest.approx([0.9, 0.9]) and recording.output_tokens.tolist() == [
        3,
        3,
    ]
    found = summary_of(log)
    assert found["mean_tpot_ms"] == pytest.approx(500) and found[
        "median_host_gap_ms"
    ] == pytest.approx(200)
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 2
    assert load_cluster(tmp_path / "cluster.json") is not None
    assert json.loads((tmp_path / "meta.json").read_text())["summary"]["steps"] == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["measure", "meta-llama/Llama-3.1-8B", "--hardware", "x", "--tp", "two"], '--tp is "two"'),
        (
            ["measure", "meta-llama/Llama-3.1-8B", "--hardware", "x", "--style", "odd"],
            '--style is "odd"',
        ),
        (
            ["serve-log", "m", "--dataset", "d", "--output", "o", "--engine", "odd"],
            '--engine is "odd"',
        ),
        (
            ["measure", "meta-llama/Llama-3.1-8B", "--hardware", "../x", "--dry-run"],
            '--hardware is "../x"',
        ),
    ],
)
def test_bad_options_are_one_sentence(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("profiler: error: ") and expected in error and error.count("\n") == 1


UNMEASURED = {
    "LiquidAI/LFM2-1.2B",
    "LiquidAI/LFM2-8B-A1B",
    "MiniMaxAI/MiniMax-M3",
    "XiaomiMiMo/MiMo-V2-Flash",
    "bigscience/bloom",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro",
    "google/gemma-4-26B-A4B-it",
    "google/gemma-4-31B-it",
    "moonshotai/Kimi-K3",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "stepfun-ai/Step-3.5-Flash",
}
"""Presets with layers of several shapes, short convolutions, a compressed context, or norms behind
the embedding or before experts: the profiler does not call their kernels, and says so.
"""


NARROW_CACHE = {
    "nvidia/DeepSeek-R1-0528-FP4-v2",
    "nvidia/Kimi-K2.5-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8",
}
"""Presets whose checkpoints ask for a KV cache in FP8, on which no attention is measured."""


@pytest.mark.parametrize("tp", [1, 4])
def test_every_preset_can_be_measured_wherever_it_can_run(tp: int, tmp_path: Path) -> None:
    small = Limits(max_tokens=64, max_seqs=4, max_kv=64)
    refused = {}
    for name in model_names():
        try:
            report = dry_run(MeasureOptions(name, "X", tmp_path / "perf", (tp,), small))
        except InputError as error:
            refused[name] = str(error)
            continue
        model = load_model(name)
        assert f"{model.weight_dtype} weights and" in report[0] or model.weight_dtype == model.dtype
        assert report[0].endswith(model.weight_dtype)
    unmeasured = {name for name, why in refused.items() if "cannot be measured by this" in why}
    assert unmeasured == UNMEASURED
    narrow = {name for name, why in refused.items() if "measured on one in bf16 only" in why}
    assert narrow == NARROW_CACHE
    assert not list(tmp_path.iterdir())  # a run would note an empty folder of profiles
    cannot_run = refused.keys() - unmeasured - narrow
    assert all(f"cannot run with tp {tp}" in refused[name] for name in cannot_run), refused
    assert len(cannot_run) == (0 if tp == 1 else 2)
