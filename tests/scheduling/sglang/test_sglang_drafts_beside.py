"""Drafts with SGLang's scheduler on data-parallel ranks and on servers that play a role."""

import json
from pathlib import Path
from typing import Any

import pytest
from scheduling.sglang.servers import DECODE_SERVER

from llmsim import run as simulate
from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.ours import our_steps

EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": [0.9]}
DRAFTS: Case = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
SERVER: Case = DECODE_SERVER | {
    "disable_radix_cache": True,
    "page_size": 1,
    "max_running_requests": 4,
    "context_length": 1000,
    "clip_max_new_tokens": 64,
    "max_total_tokens": 2000,
}


def request(number: int, arrival: float, prompt: int, answer: int) -> Case:
    return {
        "id": f"r{number}",
        "arrival": arrival,
        "segments": [[number, prompt]],
        "output_len": answer,
    }


def steps_of_ranks(*, drafts: bool, overlap: bool) -> list[Case]:
    """Two ranks, of which one has a new prompt while the other one decodes."""
    config = SERVER | {"dp_size": 2, "disable_overlap_schedule": not overlap}
    del config["disaggregation_mode"]
    requests = [request(0, 0.0, 20, 40), request(1, 0.03, 20, 4), request(3, 1.0, 20, 4)]
    case: Case = {"config": config, "requests": requests}
    if drafts:
        config |= DRAFTS
        case["acceptance"] = [0, 0, 0]
    return our_steps(case)


@pytest.mark.parametrize("overlap", [False, True])
def test_no_rank_verifies_beside_the_prompts_of_another_one(overlap: bool) -> None:
    """The rank that decodes runs along with nothing, and goes on behind the prompt."""
    steps = steps_of_ranks(drafts=True, overlap=overlap)
    prompts = {step["end_ps"] for step in steps if not step["drafts"]}
    verifications = {step["end_ps"] for step in steps if step["drafts"]}
    assert len(prompts) == 3 and not prompts & verifications
    answers = [name for step in steps for name in step["finished"]]
    assert sorted(answers) == ["r0", "r1", "r3"]


@pytest.mark.parametrize("overlap", [False, True])
def test_without_drafts_ranks_decode_beside_prompts(overlap: bool) -> None:
    steps = steps_of_ranks(drafts=False, overlap=overlap)
    times = [step["end_ps"] for step in steps if step["scheduled"][0][1:] == (20, 0)]
    beside = [step for step in steps if step["end_ps"] in times]
    assert len(beside) > len(times)


def test_who_was_alone_and_found_no_room_comes_back_with_room_for_two_verifications() -> None:
    """Others wait for their KV in a pool that the answer of the first one does not fit."""
    config = SERVER | DRAFTS | {"max_running_requests": 1, "num_reserved_decode_tokens": 0}
    config |= {"max_total_tokens": 420, "disaggregation_decode_enable_radix_cache": False}
    config |= {"clip_max_new_tokens": 1}
    requests = [request(0, 0.0, 200, 150), request(1, 0.1, 100, 9), request(2, 0.1, 100, 9)]
    steps = our_steps({"config": config, "requests": requests, "acceptance": [0, 0, 0]})
    assert any("r0" in step["preempted"] for step in steps)
    assert sorted(name for step in steps for name in step["finished"]) == ["r0", "r1", "r2"]


def test_servers_that_play_a_role_draft(tmp_path: Path) -> None:
    """Answers come sooner, and the first token of each with its KV."""
    model = {"model_name": "Qwen/Qwen3-30B-A3B", "hardware": "H100"}

    def run(fields: dict[str, Any]) -> Any:
        roles = [{**model, **fields, "pd_type": role} for role in ("prefill", "decode")]
        path = tmp_path / "cluster.json"
        cluster = {"link_bw": 450, "link_latency": 1000, "nodes": [{"instances": roles}]}
        path.write_text(json.dumps(cluster), encoding="utf-8")
        trace = "synthetic:n=20,rate=2,input=500,output=100,seed=1"
        return simulate(str(path), trace, scheduler="sglang")

    plain, drafts = run({}), run({"speculative_config": EAGLE})
    assert drafts.summary["speculation"]["drafted_tokens"] > 0
    spent = [
        (one.requests["finish_ps"] - one.requests["arrival_ps"]).mean() for one in (plain, drafts)
    ]
    assert spent[1] < spent[0]
    assert not any("in outline" in str(note) for note in drafts.notes)
