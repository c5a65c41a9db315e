"""The least time of a step that gives a token, beside what steps of compiled tables take."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.config import EngineOverrides, load_cluster, resolve
from llmsim.lowering import LoweringOptions, lower
from llmsim.lowering.device_memory import sheet_memory
from llmsim.lowering.least_step import _grid_ps, least_step_ps
from llmsim.sizing.plan import Plan, Pool, Shape


def least_ps(folder: Path, pools: tuple[Pool, ...], **options: Any) -> tuple[int, Any]:
    """The least step of a plan, and its deployment, compiled."""
    fields = Plan("Qwen/Qwen3-8B", "H100", pools, tuple(options.items())).fields()
    path = folder / "cluster.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    sheet = sheet_memory(str(path))
    deployment = resolve(load_cluster(path), EngineOverrides(), sheet=sheet)
    lowered = lower(deployment, LoweringOptions())
    return least_step_ps(deployment, lowered), lowered


@pytest.mark.parametrize("shape", [Shape(1), Shape(2), Shape(1, 2)])
def test_no_batch_of_decodes_takes_less(shape: Shape, tmp_path: Path) -> None:
    least, lowered = least_ps(tmp_path, (Pool(shape, 1),))
    program = lowered.groups[0].program
    steps = [
        program.step_ps([(1, context)] * count)
        for count in (1, 2, 7, 32, 200)
        for context in (1, 100, 4000)
    ]
    steps += [program.step_ps([(1, 500), (chunk, 0)]) for chunk in (8, 500)]
    steps += [program.step_ps([(chunk, 0)]) for chunk in (1, 16, 500)]
    assert 0.85 * min(steps) < least <= min(steps)


def test_attention_and_ffn_apart_add_up_with_the_way_between_them(tmp_path: Path) -> None:
    apart, lowered = least_ps(tmp_path, (Pool(Shape(1, ffn=1), 1),))
    attention, ffn = (lowered.groups[index].program for index in (0, 1))
    (lockstep,) = lowered.lockstep_groups
    way = lockstep.afd.least_m2n_ps()
    alone = attention.step_ps([(1, 1)]) + ffn.step_ps([(1, 1)]) + way
    assert way > 0 and 0.85 * alone < apart <= alone


def test_prefill_instances_do_not_count(tmp_path: Path) -> None:
    both, _ = least_ps(tmp_path, (Pool(Shape(2), 1, "prefill"), Pool(Shape(1), 1, "decode")))
    decode, _ = least_ps(tmp_path, (Pool(Shape(1), 1),))
    assert both == decode


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "completions"},
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "acceptance_rate": 0.5,
            }
        },
    ],
)
def test_steps_that_may_give_several_tokens_have_no_bound(
    options: dict[str, Any], tmp_path: Path
) -> None:
    assert least_ps(tmp_path, (Pool(Shape(1), 1),), **options)[0] == 0


def test_tables_that_fall_behind_their_last_context_have_no_bound() -> None:
    counts, rising = np.array([1, 2, 8]), np.array([[5, 6], [4, 7], [9, 9]])
    assert _grid_ps(rising, counts, 8) == 4
    assert _grid_ps(rising, counts, 9) == 0
    assert _grid_ps(np.array([[5, 6], [4, 3], [9, 9]]), counts, 8) == 0
    assert _grid_ps(np.array([[1, 1], [5, 6], [9, 9]]), np.array([0, 1, 8]), 8) == 5
