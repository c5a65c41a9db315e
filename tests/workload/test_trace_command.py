"""`llmsim trace inspect` and `convert`, and traces of other formats in `llmsim run`."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from llmsim.cli import main
from llmsim.workload import load_dataset

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).parent / "samples"
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"


def test_inspect_prints_a_card(capsys):
    assert (
        main(["trace", "inspect", str(SAMPLES / "mooncake.jsonl"), "--max-model-len", "1300"]) == 0
    )
    out = capsys.readouterr().out
    for text in (
        "mooncake",
        "requests          4",
        "peak 66.67/s in 0.03 s, CV",
        "at most 43.4% of prompt tokens",
        "2 requests exceed max_model_len",
    ):
        assert text in out
    assert (
        main(["trace", "inspect", str(SAMPLES / "mooncake.jsonl"), "--json", "--limit", "2"]) == 0
    )
    card = json.loads(capsys.readouterr().out)
    assert card["requests"] == 2
    assert card["peak_window_s"] == 0.005
    assert card["ideal_prefix_hit_ratio"] == round(1024 / 2836, 6)


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir()))
@pytest.mark.parametrize("target", ["llmservingsim", "mooncake"])
def test_converted_traces_read_back(tmp_path, name, target, capsys):
    out = tmp_path / "out.jsonl"
    assert (
        main(["trace", "convert", str(SAMPLES / name), str(out), "--to", target, "--token-ids"])
        == 0
    )
    assert "requests" in capsys.readouterr().out
    first = load_dataset(str(SAMPLES / name), known_models=[], granularity=16)
    again = load_dataset(str(out), known_models=[], granularity=16)
    for column in ("input_tokens", "output_tokens", "next_call"):
        assert np.array_equal(getattr(again, column), getattr(first, column))
    allowed_ps = 10**9 if target == "mooncake" else 0
    heads = first.arrival_ps >= 0
    assert (
        np.abs(again.arrival_ps - again.arrival_ps[0] - first.arrival_ps + first.arrival_ps[0])[
            heads
        ].max()
        <= allowed_ps
    )
    assert np.abs(again.tool_delay_ps - first.tool_delay_ps).max() <= allowed_ps


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["azure_2023.csv", "llmservingsim.jsonl", "sharegpt.json"])
def test_a_pipe_is_read_as_its_file_is(tmp_path, name, capsys):
    os.mkfifo(tmp_path / "pipe")
    feeder = threading.Thread(
        target=lambda: (tmp_path / "pipe").write_bytes((SAMPLES / name).read_bytes())
    )
    feeder.start()
    assert main(["trace", "inspect", str(tmp_path / "pipe"), "--json"]) == 0
    feeder.join()
    piped = json.loads(capsys.readouterr().out)
    assert main(["trace", "inspect", str(SAMPLES / name), "--json"]) == 0
    assert {**json.loads(capsys.readouterr().out), "notes": [], "source": ""} == {
        **piped,
        "notes": [],
        "source": "",
    }


def test_convert_packs_and_writes_to_standard_output(tmp_path, capfdbinary):
    sample = str(SAMPLES / "mooncake.jsonl")
    for name, magic in (("a.gz", b"\x1f\x8b"), ("b.zst", b"\x28\xb5\x2f\xfd"), ("c", b"{")):
        assert main(["trace", "convert", sample, str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(magic)
        made = load_dataset(str(tmp_path / name), known_models=[], granularity=16)
        assert made.input_tokens.tolist() == [1300, 1536, 600, 100]
    capfdbinary.readouterr()
    assert main(["trace", "convert", sample, "-"]) == 0
    out, said = capfdbinary.readouterr()
    assert out == (tmp_path / "c").read_bytes()
    assert b"4 requests" in said


def test_sharing_that_larger_blocks_lose_is_said(tmp_path, capsys):
    convert = [
        "trace",
        "convert",
        str(SAMPLES / "weka.jsonl"),
        str(tmp_path / "out"),
        "--to",
        "mooncake",
    ]
    assert main(convert) == 0
    assert "--output-block 64 keeps them" in capsys.readouterr().err
    assert main([*convert, "--output-block", "64"]) == 0
    assert "--output-block" not in capsys.readouterr().err


def test_mistakes_are_one_sentence(tmp_path, capsys):
    sample = str(SAMPLES / "mooncake.jsonl")
    for arguments, said in (
        (["inspect", sample, "--format", "moon"], "unknown trace format"),
        (["inspect", sample, "--window", "9-3"], '"window" is 9-3, but must be START-END'),
        (["inspect", sample, "--window", "5"], '"window" is 5, but must be START-END in seconds'),
        (["inspect", sample, "--window", "-"], '"window" is -, but must be START-END in seconds'),
        (["inspect", sample, "--window", "900-"], "by the window 900-; they arrive from 0 to 3 s"),
        (
            ["inspect", sample, "--window", "900-950"],
            "by the window 900-950; they arrive from 0 to 3 s",
        ),
        (
            ["inspect", f"trace:{sample},speedups=3"],
            'unknown option "speedups" (did you mean "speedup"?)',
        ),
        (["convert", sample, str(tmp_path / "x"), "--to", "csv"], '--to is "csv"'),
        (
            [
                "convert",
                str(SAMPLES / "tracelab.jsonl"),
                str(tmp_path / "x"),
                "--to",
                "mooncake",
                "--output-block",
                "40",
            ],
            "must be a multiple of 16",
        ),
    ):
        assert main(["trace", *arguments]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_run_accepts_other_formats_and_finds_their_prefixes(capsys):
    options = ["--cost-source", "roofline", "--json", "--log-level", "WARNING"]
    dataset = f"trace:{SAMPLES / 'mooncake.jsonl'},speedup=0.5"
    assert main(["run", "--cluster-config", str(CLUSTER), "--dataset", dataset, *options]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["completed"] == 4
    assert summary["prefix_cache"]["hit_tokens"] == 1024 + 512


def test_a_plain_run_imports_no_reader_but_its_own():
    code = (
        "import sys; from llmsim.workload import load_dataset; "
        f"load_dataset({str(ROOT / 'dataset' / 'example_10.jsonl')!r}, known_models=[], "
        "granularity=16); "
        "print([m for m in sys.modules if m.startswith('llmsim.workload.formats') or "
        "m.startswith('llmsim.workload.generators') or m.split('.')[0] in ('pyarrow', 'rich')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_a_long_trace_of_repeats_is_looked_at_in_larger_blocks(capsys, monkeypatch):
    cards = []
    for most in (1 << 23, 20):
        monkeypatch.setattr("llmsim.cli.commands.files.trace.INSPECTED_KEYS", most)
        assert main(["trace", "inspect", str(SAMPLES / "tracelab.jsonl"), "--json"]) == 0
        cards.append(json.loads(capsys.readouterr().out))
    fine, coarse = cards
    assert (fine["content_block_tokens"], coarse["content_block_tokens"] % 32) == (16, 0)
    assert 0 < coarse["ideal_prefix_hit_ratio"] <= fine["ideal_prefix_hit_ratio"]
    same = ("requests", "sessions", "input_tokens", "output_tokens", "span_s")
    assert [fine[name] for name in same] == [coarse[name] for name in same]


def test_a_trace_without_content_is_written_in_blocks_of_any_size(tmp_path: Path) -> None:
    """Mooncake's blocks of 512 tokens bind traces that name their content in them."""
    sample = Path(__file__).with_name("samples") / "servegen_batch.jsonl"
    target = tmp_path / "out.jsonl"
    convert = ["trace", "convert", str(sample), str(target), "--to", "mooncake"]
    assert main([*convert, "--output-block", "16"]) == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [one["hash_ids"] for one in rows] == [[0, 1, 2, 3], [4, 5, 6, 7]]


BURST = str(SAMPLES / "burstgpt.csv")
TWO_MODELS = {"link_bw": 100, "link_latency": 1000, "nodes": [{"instances": [
    {"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100"},
    {"model_name": "Qwen/Qwen3-8B", "hardware": "H100"}]}]}  # fmt: skip


def converted_models(target, *options):
    assert main(["trace", "convert", BURST, str(target), "--failures", "keep", *options]) == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    return [row.get("model") for row in rows]


def test_names_of_models_of_other_formats_are_left_out_of_our_own(tmp_path, capsys):
    out = tmp_path / "own.jsonl"
    assert converted_models(out) == [None] * 4
    said = capsys.readouterr().err
    assert "names of models (ChatGPT, GPT-4) are left out" in said and "--model" in said
    assert main(["run", "--cluster-config", str(CLUSTER), "--dataset", str(out)]) == 0


def test_convert_renames_models(tmp_path, capsys):
    out = tmp_path / "own.jsonl"
    assert converted_models(out, "--model", "mine") == ["mine"] * 4
    assert "left out" not in capsys.readouterr().err
    assert converted_models(out, "--model", "GPT-4=big|small") == ["small", "small", "big", "big"]
    assert converted_models(out, "--model", "GPT-4=big") == [None, None, "big", "big"]
    assert "names of models (ChatGPT) are left out" in capsys.readouterr().err
    again = tmp_path / "again.jsonl"
    assert main(["trace", "convert", str(out), str(again), "--model", "big=other|=x"]) == 2
    assert "a name for all requests, or OLD=NEW" in capsys.readouterr().err
    assert main(["trace", "convert", str(out), str(again), "--model", "big=other"]) == 0
    assert '"other"' in again.read_text() and '"big"' not in again.read_text()


def test_a_cluster_of_several_models_runs_a_renamed_trace(tmp_path, capsys):
    cluster = tmp_path / "two.json"
    cluster.write_text(json.dumps(TWO_MODELS))
    run = ["run", "--cluster-config", str(cluster), "--dataset"]
    assert main([*run, f"trace:{BURST}"]) == 2
    assert 'model "ChatGPT" is not served' in capsys.readouterr().err
    assert main([*run, f"trace:{BURST},model=GPT-4=Qwen3-8B|Llama-3.1-8B"]) == 0
    assert main([*run, f"trace:{BURST},model=GPT-4=Qwen3-8|Llama-3.1-8B"]) == 2
    assert 'did you mean "Qwen/Qwen3-8B"' in capsys.readouterr().err
