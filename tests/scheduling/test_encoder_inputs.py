"""Images and other parts of prompts that an encoder computes: budget, cache, and equal content."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.api.workload import workload_source
from llmsim.cli import run_main
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.export.jsonl import write_jsonl
from llmsim.scheduling.conformance.cases import run_case
from llmsim.workload import load_dataset, load_trace

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
VLLM_033 = ("--engine-profile", "vllm-0.33")


def image(offset: int, tokens: int, name: str = "") -> dict[str, Any]:
    return {"offset": offset, "tokens": tokens, **({"id": name} if name else {})}


def line(*inputs: dict[str, Any], tokens: int = 64, **more: Any) -> dict[str, Any]:
    row = {"input_toks": tokens, "output_toks": 2, "arrival_time_ns": 0, **more}
    return {**row, "encoder_inputs": list(inputs)} if inputs else row


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def loaded(path: Path, *rows: dict[str, Any]) -> Workload:
    return load_trace(written(path, *rows), known_models=(), granularity=16)


def test_a_trace_has_images(tmp_path: Path) -> None:
    call = {"input_toks": 40, "output_toks": 2}
    session = {
        "arrival_time_ns": 1,
        "sub_requests": [call, {**call, "encoder_inputs": [image(8, 32, "cat")]}],
    }
    workload = loaded(tmp_path / "t.jsonl", line(image(0, 4), image(4, 60, "dog")), session, line())
    assert workload.encoder_inputs == [((0, 4, ""), (4, 60, "dog")), (), (), ((8, 32, "cat"),)]
    assert not any("unknown" in note or "given twice" in note for note in workload.notes)
    first = load_dataset(f"trace:{tmp_path / 't.jsonl'},limit=1", known_models=(), granularity=16)
    assert first.encoder_inputs == [((0, 4, ""), (4, 60, "dog"))]
    again = tmp_path / "again.jsonl"
    write_jsonl(workload, again)
    assert load_trace(again, known_models=(), granularity=16).encoder_inputs == (
        workload.encoder_inputs
    )


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("cat", r'"encoder_inputs" is "cat", but must be a list'),
        ([3], r'"encoder_inputs\[0\]" is 3, but must be an object'),
        ([{"offset": 0}], r'"encoder_inputs\[0\]\.tokens" is missing'),
        ([image(-1, 3)], r'"encoder_inputs\[0\]\.offset" is -1'),
        ([image(0, 0)], r'"encoder_inputs\[0\]\.tokens" is 0'),
        ([image(0, 8), image(7, 2)], r'"encoder_inputs\[1\]\.offset" is 7, but must .* from 8'),
        ([image(60, 5)], r'"encoder_inputs\[0\]\.tokens" end with token 65, .* has 64 tokens'),
        ([{**image(0, 1), "id": 5}], r'"encoder_inputs\[0\]\.id" is 5'),
        ([{**image(0, 1), "url": "x"}], r'"encoder_inputs\[0\]" is .*url'),
    ],
)
def test_a_bad_image_is_named(bad: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.jsonl:1:\d+: " + said):
        loaded(tmp_path / "t.jsonl", {**line(), "encoder_inputs": bad})
    call = {"input_toks": 64, "output_toks": 2, "encoder_inputs": bad}
    session = {"arrival_time_ns": 0, "sub_requests": [call]}
    with pytest.raises(InputError, match=r"t\.jsonl:1:\d+: .*encoder_inputs"):
        loaded(tmp_path / "t.jsonl", session)


def test_placeholders_are_equal_where_images_are(tmp_path: Path) -> None:
    """Blocks of 16 tokens; an image of 20 begins with the second block. All tokens are equal."""
    ids = {"input_tok_ids": [7] * 64}
    rows = [line(image(16, 20, name), **ids) for name in ("cat", "cat", "dog", "", "")] + [
        line(**ids),
        line(image(17, 20, "cat"), **ids),
    ]
    workload = loaded(tmp_path / "t.jsonl", *rows)
    keys = [
        workload.keys[start:end].tolist() for start, end in pairwise(workload.key_offsets.tolist())
    ]
    assert keys[0] == keys[1]
    assert len({tuple(row) for row in keys}) == 6
    assert {row[0] for row in keys} == {keys[0][0]}
    assert len({row[1] for row in keys}) == 6


def steps_of(
    images: list[list[int]], *, step_tokens: int, cache_tokens: int, whole: bool = False
) -> list[dict[str, int]]:
    """Tokens of each request by step; prompts of 40 tokens are [text 10, image 20, text 10], and
    `images` are the contents of the requests' images.
    """
    requests = [
        {
            "id": str(row),
            "arrival": 0.0,
            "segments": [[1 + row, 10], *([one, 20] for one in contents), [500 + row, 10]],
            "images": list(range(1, 1 + len(contents))),
            "output_len": 1,
        }
        for row, contents in enumerate(images)
    ]
    case = {
        "config": {
            "num_gpu_blocks": 100,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 200,
            "max_model_len": 200,
            "encoder_tokens": step_tokens,
            "encoder_cache_tokens": cache_tokens,
            "disable_chunked_mm_input": whole,
        },
        "resolved": {
            "max_num_scheduled_tokens": 200,
            "max_concurrent_batches": 1,
            "num_lookahead_tokens": 0,
            "num_spec_tokens": 0,
            "reserve_full_isl": True,
            "watermark": 0.0,
            "draft_slots": 0,
            "engine_profile": "vllm-0.33",
        },
        "requests": requests,
    }
    return [{name: tokens for name, tokens, _ in step["scheduled"]} for step in run_case(case)]


def test_a_step_ends_in_front_of_an_image_without_budget() -> None:
    """20 tokens a step: one image. The second request computes its text, and then waits for it."""
    free = steps_of([[900], [901]], step_tokens=40, cache_tokens=40)
    assert free == [{"0": 40, "1": 40}]
    tight = steps_of([[900], [901]], step_tokens=20, cache_tokens=40)
    assert tight == [{"0": 40, "1": 10}, {"1": 30}]
    two = steps_of([[900, 901]], step_tokens=20, cache_tokens=40)
    assert two == [{"0": 30}, {"0": 30}]


def test_equal_images_are_encoded_once() -> None:
    assert steps_of([[900], [900]], step_tokens=20, cache_tokens=20) == [{"0": 40, "1": 40}]
    assert steps_of([[900, 900]], step_tokens=20, cache_tokens=20) == [{"0": 60}]


def test_a_cache_without_room_waits_until_an_image_is_computed() -> None:
    """The first step's image is held until the step has ended."""
    assert steps_of([[900], [901]], step_tokens=40, cache_tokens=20) == [
        {"0": 40, "1": 10},
        {"1": 30},
    ]


def test_budgets_hold_the_largest_image() -> None:
    assert steps_of([[900]], step_tokens=1, cache_tokens=1) == [{"0": 40}]


def test_whole_images_are_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With 48 tokens a step, an image of 40 behind 10 tokens is cut, or left for the next step."""
    path = written(tmp_path / "t.jsonl", line(image(10, 40), output_toks=1))
    ends = {}
    for option in ("--no-disable-chunked-mm-input", "--disable-chunked-mm-input"):
        arguments = ["--cluster-config", str(CLUSTER), "--dataset", str(path), *VLLM_033, option]
        arguments += ["--max-num-batched-tokens", "48", "--max-num-seqs", "4", "--json"]
        assert run_main([*arguments, "--cost-source", "roofline"]) == 0
        ends[option] = json.loads(capsys.readouterr().out)["steps"]
    assert list(ends.values()) == [2, 3]


def test_the_run_says_what_it_does_with_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "t.jsonl", line(image(0, 20, "a")), line(image(8, 20, "a")))
    base = ["--cluster-config", str(CLUSTER), "--dataset", str(path), "--cost-source", "roofline"]
    assert run_main([*base, *VLLM_033, "--json"]) == 0
    modelled = json.loads(capsys.readouterr().out)
    assert modelled["encoder"] == {
        "encoded_inputs": 1,
        "encoded_tokens": 20,
        "encoder_cache_hits": 1,
    }
    assert any("encoder of 2 encoder_inputs and" in one for one in modelled["notes"])
    for options in (("--engine-profile", "vllm-0.19"), (*VLLM_033, "--scheduler", "orca")):
        assert run_main([*base, *options, "--json", "--max-model-len", "4096"]) == 0
        plain = json.loads(capsys.readouterr().out)
        assert plain["encoder"]["encoded_inputs"] == 0
        assert any("count as prompt tokens alone" in note for note in plain["notes"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine_profile": "vllm-0.19"}, r"encoder_cache_size is no option of vllm-0\.19"),
        ({"scheduler": "orca"}, "encoder_cache_size is an option of the scheduler vllm_v1"),
    ],
)
def test_where_budgets_are_refused(options: dict[str, Any], sentence: str) -> None:
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    given = {"engine_profile": "vllm-0.33", "encoder_cache_size": 100, **options}
    with pytest.raises(InputError, match=sentence):
        resolve(parse_cluster(json.dumps({**cluster, "engine": given})), EngineOverrides())


def test_requests_of_python_have_images() -> None:
    requests = [
        llmsim.Request(0.0, 64, 2, encoder_inputs=[image(0, 20, "a")]),
        llmsim.Request(0.0, 64, 2),
    ]
    workload = workload_source(requests).load((), 16, 0)
    assert workload.encoder_inputs == [((0, 20, "a"),), ()]
