"""What an encoder adds to the steps in which it computes images."""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.config.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
DENSE = "Qwen/Qwen3.5-27B"
"""Its prompts of 1,200 tokens take longer than the host takes to launch them."""
TOKENS = 1200


def cluster(folder: Path, model: str = DENSE, **instance: Any) -> Path:
    content = json.loads((ROOT / "cluster_config" / "h100_llama31_8b.json").read_text())
    (one,) = content["nodes"][0]["instances"]
    one |= {"model_name": model, **instance}
    path = folder / "cluster.json"
    path.write_text(json.dumps(content))
    return path


def line(*images: tuple[int, int, str], at_ms: int = 0, output_toks: int = 2) -> dict[str, Any]:
    inputs = [{"offset": offset, "tokens": tokens, "id": name} for offset, tokens, name in images]
    row = {"input_toks": TOKENS, "output_toks": output_toks, "arrival_time_ns": at_ms * 1_000_000}
    return {**row, "encoder_inputs": inputs} if inputs else row


def run(path: Path, *lines: dict[str, Any], **options: Any) -> Any:
    trace = path.with_name("trace.jsonl")
    trace.write_text("".join(json.dumps(one) + "\n" for one in lines))
    given = {"engine_profile": "vllm-0.33", "cost_source": "roofline", **options}
    return llmsim.run(path, trace, **given)


def encoder_ps(result: Any) -> list[int]:
    return [int(value) for value in result.requests["encoder_ps"]]


def test_a_prompt_takes_longer_by_what_its_image_takes(tmp_path: Path) -> None:
    path = cluster(tmp_path)
    plain, seen = run(path, line()), run(path, line((20, 1024, "cat")))
    (added,) = encoder_ps(seen)
    difference = seen.requests["ttft_ps"][0] - plain.requests["ttft_ps"][0]
    assert difference == added > 2 * 10**9
    assert "encoder_ps" not in plain.requests and "encoder" not in plain.summary["blame"]
    assert any("a vision tower, whose matrices" in note for note in seen.notes)


def test_layers_take_at_least_their_flops_at_the_peak(tmp_path: Path) -> None:
    """Two flops for each weight of the layers and patch, four of them a token, at 989 TFLOP/s."""
    (added,) = encoder_ps(run(cluster(tmp_path), line((20, 1024, "cat"))))
    weights = 27 * (4 * 1152**2 + 2 * 1152 * 4304)
    least_ps = 2 * weights * 4096 / 989e12 * 1e12
    assert least_ps < added < 4 * least_ps


def test_an_image_that_is_kept_takes_no_time_again(tmp_path: Path) -> None:
    image = (20, 1024, "cat")
    again = run(cluster(tmp_path), line(image), line(image, at_ms=1000), line(at_ms=2000))
    first, second, third = encoder_ps(again)
    assert first > 0 == second == third
    assert again.summary["encoder"] == {
        "encoded_inputs": 1,
        "encoded_tokens": 1024,
        "encoder_cache_hits": 1,
    }


def test_images_see_themselves_alone(tmp_path: Path) -> None:
    """Two halves have half the pairs of a whole image, and as many patches."""
    path = cluster(tmp_path)
    (whole,) = encoder_ps(run(path, line((0, 1024, "cat"))))
    (halves,) = encoder_ps(run(path, line((0, 512, "cat"), (512, 512, "dog"))))
    (half,) = encoder_ps(run(path, line((0, 512, "cat"))))
    assert half < halves < whole
    assert halves < 2 * half


def test_all_requests_of_a_step_wait_for_its_image(tmp_path: Path) -> None:
    """The first one decodes while the second one's prompt is computed; parts add up."""
    lines = [line(output_toks=50), line((20, 1024, "cat"), at_ms=300)]
    result = run(cluster(tmp_path), *lines)
    first, second = encoder_ps(result)
    assert first == second > 0
    causes = [
        name
        for name in result.requests.columns
        if name.endswith("_ps") and name[:-3] in result.summary["blame"]
    ]
    assert "encoder_ps" in causes
    totals = result.requests[causes].sum(axis=1)
    assert totals.tolist() == result.requests["e2el_ps"].tolist()


@pytest.mark.parametrize("instance", [{"num_npus": 2, "tp_size": 2}, {"num_npus": 2, "pp_size": 2}])
def test_every_node_in_the_engine_gives_the_same_times(
    instance: dict[str, int], tmp_path: Path
) -> None:
    path = cluster(tmp_path, **instance)
    lines = [line((20, 1024, f"c{k}"), at_ms=40 * k, output_toks=5) for k in range(3)]
    lines += [line((0, 300, f"{k}"), (400, 700, f"b{k}"), at_ms=50 * k) for k in range(3)]
    folded, exact = run(path, *lines), run(path, *lines, exact=True)
    assert folded.requests["finish_ps"].tolist() == exact.requests["finish_ps"].tolist()
    assert encoder_ps(folded) == encoder_ps(exact)
    assert max(encoder_ps(folded)) > 0


def test_ranks_share_the_tower(tmp_path: Path) -> None:
    image = line((20, 1024, "cat"))
    (alone,) = encoder_ps(run(cluster(tmp_path), image))
    (shared,) = encoder_ps(run(cluster(tmp_path, num_npus=2, tp_size=2), image))
    assert alone / 2 < shared < alone


def test_an_image_beyond_the_times_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = cluster(tmp_path, model="Qwen/Qwen3-VL-30B-A3B-Instruct")
    large = line((0, 17000, "cat")) | {"input_toks": 17100}
    with pytest.raises(InputError, match=r"up to 17,000 tokens.*encoder_input_tokens 17000"):
        run(path, large)
    (added,) = encoder_ps(run(path, large, max_num_encoder_input_tokens=17000))
    assert added > 0


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        ("google/gemma-3-27b-it", {}, "leaves open how many patches a token has"),
        ("meta-llama/Llama-3.1-8B", {}, "describes no vision tower"),
        (DENSE, {"engine_profile": "vllm-0.19"}, "budgets of an encoder are not modelled"),
    ],
)
def test_a_note_says_why_an_encoder_takes_no_time(
    model: str, options: dict[str, str], why: str, tmp_path: Path
) -> None:
    result = run(cluster(tmp_path, model), line((20, 512, "cat")), **options)
    assert any("the time of the encoder" in note and why in note for note in result.notes)
    assert "encoder_ps" not in result.requests


def test_ranks_that_share_experts_have_no_times_and_a_note(tmp_path: Path) -> None:
    name = "rtxpro6000_qwen3_30b_a3b_dp2_ep2.json"
    content = json.loads((ROOT / "cluster_config" / name).read_text())
    for node in content["nodes"]:
        for instance in node["instances"]:
            instance["model_name"] = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    result = run(path, line((20, 512, "cat")), line(at_ms=5))
    assert any("experts that data-parallel ranks share" in note for note in result.notes)
    assert "encoder_ps" not in result.requests


def test_graphs_have_the_nodes_of_the_encoder(tmp_path: Path) -> None:
    """The step with the image alone has them, and they take what the request says."""
    result = run(cluster(tmp_path), line((20, 1024, "cat")))
    prompt, decode = (
        [data for _, data in result.graph(0, step).nodes(data=True)] for step in (0, 1)
    )
    encoded = [one for one in prompt if str(one["name"]).startswith("encoder_")]
    assert {one["name"] for one in encoded} >= {"encoder_patch", "encoder_qkv"}
    total_ps = round(sum(one["duration_us"] for one in encoded) * 10**6)
    assert total_ps == pytest.approx(encoder_ps(result)[0], rel=1e-6)
    assert not any(str(one["name"]).startswith("encoder_") for one in decode)
