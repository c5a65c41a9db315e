"""The devices behind an engine core time the batches of a run as the run does."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from emulation.test_emulation import CLUSTER, EAGLE, NGRAM

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.emulation.devices import Devices
from llmsim.emulation.engines.sglang import Sglang
from llmsim.emulation.engines.vllm import Vllm
from llmsim.emulation.requests import engine_requests
from llmsim.lowering import LoweredGroup
from llmsim.scheduling.conformance.model_runner import ModelRunner
from llmsim.scheduling.conformance.vllm.request import LiveRequest
from llmsim.simulation.run import native_simulation

SGLANG = ["--scheduler", "sglang"]
BRANCHES = ["--sglang-eagle-topk", "2", "--sglang-draft-tokens", "6"]
DATASET = "synthetic:n=40,rate=30,input=uniform:20-3000,output=uniform:2-30,seed=3"


def prepared_on(name: str, *options: str) -> Prepared:
    words = ["--cluster-config", str(CLUSTER.with_name(name)), "--dataset", DATASET]
    profile = [] if options[:2] == tuple(SGLANG) else ["--engine-profile", "vllm-0.33"]
    return prepare(checked_options([*words, *profile, *options]))


def schedule_of(prepared: Prepared) -> dict[str, list[Any]]:
    simulation = native_simulation(prepared.lowered, prepared.workload, prepared.simulation, (0,))
    while not simulation.run(100_000, 1_000):
        pass
    return {name: np.asarray(one).tolist() for name, one in simulation.schedule(0).items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("h100_llama31_8b.json", []),
        ("h100_llama31_8b.json", ["--speculative-config", NGRAM, "--no-async-scheduling"]),
        ("h100_llama31_8b.json", ["--speculative-config", EAGLE]),
        ("h100_llama31_8b.json", [*SGLANG, "--speculative-config", EAGLE]),
        ("h100_llama31_8b.json", [*SGLANG, "--speculative-config", EAGLE, *BRANCHES]),
    ],
)
def test_every_step_takes_what_it_takes_in_the_run(name: str, options: list[str]) -> None:
    prepared = prepared_on(name, *options)
    engine = Sglang() if options[:2] == SGLANG else Vllm()
    (group,) = prepared.lowered.groups
    assert group.scheduler is not None
    requests = engine_requests(prepared.workload, stops=False)
    model = ModelRunner(requests, group.scheduler.speculation)
    devices = Devices(group, model, engine.drafts_after)
    schedule = schedule_of(prepared)
    names = ("item_request", "item_tokens", "item_computed", "item_drafts")
    started: set[int] = set()
    ends: list[int] = []
    for number, (first, last) in enumerate(pairwise(schedule["item_offsets"])):
        rows = zip(*(schedule[name][first:last] for name in names), strict=True)
        items = [
            [f"cmpl-{row:09d}-0-aa", tokens, before, drafts, row not in started]
            for row, tokens, before, drafts in rows
        ]
        started |= set(schedule["item_request"][first:last])
        if not items:
            devices.empty_step()
            continue
        end_ps, *_ = devices.step(items, schedule["time_ps"][number])
        ends.append(end_ps - schedule["end_ps"][number])
    assert len(ends) > 30
    assert set(ends) == {0}


FIRST = "cmpl-000000000-0-aa"
"""The engine's name of the first request."""


def group_and_requests(cluster: str) -> tuple[LoweredGroup, list[LiveRequest]]:
    prepared = prepared_on(cluster)
    (group,) = prepared.lowered.groups
    return group, engine_requests(prepared.workload, stops=False)


def test_a_host_prepares_a_step_of_stages_beside_the_step_before() -> None:
    """It has the batch before the tokens that the first stage computes on."""
    group, requests = group_and_requests("h100_llama31_70b_tp4_pp2.json")
    assert group.scheduler is not None
    prompt = requests[0].input_tokens
    ends = []
    for share in (2, 1):
        devices = Devices(group, ModelRunner(requests, group.scheduler.speculation))
        first_ps, *_ = devices.step([[FIRST, prompt, 0, 0, True]], 0)
        devices.empty_step()
        end_ps, *_ = devices.step([[FIRST, 1, prompt, 0, False]], first_ps // share)
        ends.append(end_ps)
    engine = group.engine
    assert ends[1] - ends[0] == engine.prepare_ps + engine.prepare_sequence_ps > 0


def test_a_token_that_the_engine_drops_is_given_again() -> None:
    """A prompt starts again while its first decode is in flight, whose token nobody takes."""
    group, requests = group_and_requests("h100_llama31_8b.json")
    assert group.scheduler is not None
    prompt = requests[0].input_tokens
    devices = Devices(group, ModelRunner(requests, group.scheduler.speculation))
    devices.step([[FIRST, prompt, 0, 0, True]], 0)
    dropped = devices.step([[FIRST, 1, prompt, 0, False]], 0).tokens
    devices.drops({FIRST: prompt + 1})
    again = devices.step([[FIRST, prompt + 1, 0, 0, True]], 0).tokens
    assert again == dropped == [[requests[0].output(1)]]
