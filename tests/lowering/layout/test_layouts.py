"""Parallel layouts from cluster files: folded equals expanded, work is conserved, illegal ones are
refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.api.preparation.prepare import trial
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError
from llmsim.lowering.parallel_layout import stage_operators
from llmsim.model import Attention, Dtypes, Gemm, Layout, Moe, load_model, operators, weight_bytes
from llmsim.model.parallel.transforms import split_layers

from ..clusters import check_folded_is_expanded, cluster, lowered, model, run

ROOT = Path(__file__).resolve().parents[3]

LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tp2": ({}, {"tp_size": 2}),
    "pp2": ({}, {"pp_size": 2}),
    "pp3_uneven": ({}, {"pp_size": 3, "pp_layers": [1, 1, 3]}),
    "tp2_pp2": ({}, {"num_npus": 4, "tp_size": 2}),
    "older_dialect": ({}, {"npu_num": 4, "npu_group": 2}),
    "pp2_extra_batch": ({}, {"pp_size": 2, "pipeline_extra_batches": 1}),
    "ep2": ({"experts": 8}, {"tp_size": 2, "ep_size": 2}),
    "dp2_ep2": ({"experts": 8}, {"dp_group": "a", "ep_size": 2}),
    "dp2_tp2_ep2": ({"experts": 8}, {"dp_group": "a", "tp_size": 2, "ep_size": 2}),
    "dp2_tp2_ep4": ({"experts": 8}, {"dp_group": "a", "tp_size": 2}),
    "dp2_pp2": ({"experts": 8, "dense_first": 2}, {"dp_group": "a", "pp_size": 2}),
    "dp2_tp2_pp2": (
        {"experts": 8, "dense_first": 1},
        {"dp_group": "a", "num_npus": 4, "tp_size": 2},
    ),
    "dense_dp2": ({}, {"dp_group": "a"}),
    "dense_dp2_lockstep": ({}, {"dp_group": "a", "lockstep_dense_dp": True}),
}


def document(tmp_path: Path, name: str, **more: Any) -> dict[str, Any]:
    shape, instance = LAYOUTS[name]
    members = 2 if "dp_group" in instance else 1
    return cluster(model(tmp_path, **shape), members=members, **instance, **more)


@pytest.mark.parametrize("name", LAYOUTS)
def test_folded_equals_expanded(tmp_path: Path, name: str) -> None:
    check_folded_is_expanded(document(tmp_path, name))


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_share_the_work_of_one(tmp_path: Path, name: str) -> None:
    shape, _ = LAYOUTS[name]
    config = load_model(model(tmp_path, **shape))
    layout = lowered(document(tmp_path, name)).groups[0].layout
    dtypes = Dtypes()

    def flops(ops: Any) -> int:
        kept = [op for op in ops if isinstance(op, Gemm | Moe | Attention)]
        kept = [op for op in kept if op.name != "moe_gate"]
        context = sum(
            op.repeat * op.flops_per_context_token for op in kept if isinstance(op, Attention)
        )
        return context + sum(op.repeat * op.flops_per_token for op in kept)

    alone = flops(operators(config, Layout(), dtypes))
    stages = stage_operators(config, layout, dtypes)
    ours = sum(flops(op for op in ops if op.feature != "gathered") for ops in stages) * layout.tp
    shared = (
        sum(flops(op for op in ops if op.feature == "gathered") for ops in stages)
        * layout.expert_ranks
    )
    assert ours + shared == alone


@pytest.mark.parametrize(
    ("layers", "stages", "split"), [(5, 2, (3, 2)), (8, 3, (3, 3, 2)), (80, 8, (10,) * 8)]
)
def test_layers_are_left_over_to_the_stages_before_the_last(
    layers: int, stages: int, split: tuple[int, ...]
) -> None:
    assert split_layers(layers, stages) == split


def test_stages_hold_all_weights_once(tmp_path: Path) -> None:
    config = load_model(model(tmp_path))
    whole = weight_bytes(config, Layout(), Dtypes())
    layout = Layout(stage_layers=(2, 2, 1))
    parts = [
        weight_bytes(config, Layout(stage_layers=layout.stage_layers, stage=s), Dtypes())
        for s in range(3)
    ]
    assert sum(parts) == whole


def test_idle_ranks_run_dummies_until_the_wave_ends(tmp_path: Path) -> None:
    """One request: the other rank's steps have no tokens, both take part in as many, a multiple of
    the interval.
    """
    one = "synthetic:n=1,rate=1,input=100,output=5,seed=1"
    results = run(document(tmp_path, "dp2_ep2", dp_sync_interval=8), trace=one)
    group, tokens = np.asarray(results.steps["group"]), np.asarray(results.steps["tokens"])
    assert np.count_nonzero(group == 0) == np.count_nonzero(group == 1) == 8
    assert tokens[group == 0].sum() == 100 + 4
    assert tokens[group == 1].sum() == 0


def test_ranks_pad_to_the_largest_only_if_all_have_a_graph(tmp_path: Path) -> None:
    results = run(document(tmp_path, "dp2_ep2", cuda_graph_sizes=[8, 64]))
    steps = {name: np.asarray(column) for name, column in results.steps.items()}
    first, second = (steps["group"] == index for index in (0, 1))
    count = min(np.count_nonzero(first), np.count_nonzero(second))
    tokens = np.stack([steps["tokens"][first][:count], steps["tokens"][second][:count]])
    padded = np.stack(
        [steps["padded_tokens"][first][:count], steps["padded_tokens"][second][:count]]
    )
    largest = np.maximum(tokens, 1).max(axis=0)
    for eager in (False, True):
        chosen = (largest > 64) == eager
        assert chosen.any()
        if eager:
            assert (padded[:, chosen] == np.maximum(tokens, 1)[:, chosen]).all()
        else:
            assert (padded[:, chosen] == np.where(largest[chosen] <= 8, 8, 64)).all()


def test_a_slow_link_between_nodes_is_felt(tmp_path: Path) -> None:
    """Two entries: the first inside an instance, the second between data-parallel ranks."""
    near = cluster(model(tmp_path, experts=8), members=2, dp_group="a", links=[900, 900])
    far = cluster(model(tmp_path, experts=8), nodes=2, dp_group="a", links=[900, 5])
    # Not the last one's end: requests share other steps, which may be over sooner.
    assert run(far).requests.finish_ps.sum() > run(near).requests.finish_ps.sum()


def test_pipeline_stages_overlap(tmp_path: Path) -> None:
    """Two stages with batches of their own finish a burst sooner than one batch at a time through
    both.
    """
    burst = "synthetic:n=32,rate=100000,input=200,output=8,seed=3"
    results = run(document(tmp_path, "pp2"), trace=burst)
    start, end = np.asarray(results.steps["start_ps"]), np.asarray(results.steps["end_ps"])
    assert (start[1:] < end[:-1]).any()
    assert (end[1:] >= end[:-1]).all()


@pytest.mark.parametrize(
    "more", [{"scheduler": "sarathi"}, {"scheduler": "orca"}, {"async_scheduling": True}]
)
def test_stages_of_other_schedulers_and_one_batch_more_overlap_too(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Several batches run at once, none overtakes; of a sequence one at a time; every node in the
    engine agrees.
    """
    at_once = cluster(
        model(tmp_path),
        pp_size=2,
        num_npus=2,
        max_model_len=512,
        max_num_batched_tokens=512,
        **more,
    )
    burst = (
        "synthetic:n=32,rate=100000,input=lognormal:120:max=240,output=lognormal:20:max=40,seed=3"
    )
    results, exact = run(at_once, trace=burst), run(at_once, exact=True, trace=burst)
    assert set(results.invariants.values()) == {"ok"}
    start, end = np.asarray(results.steps["start_ps"]), np.asarray(results.steps["end_ps"])
    assert (start[1:] < end[:-1]).any() and (end[1:] >= end[:-1]).all()
    for request in range(32):
        times = np.asarray(results.itl_of(request))
        assert (times > 0).all()
    assert (results.requests.finish_ps == exact.requests.finish_ps).all()


BURST = "synthetic:n=32,rate=100000,input=lognormal:120:max=240,output=lognormal:20:max=40,seed=3"


def stages(tmp_path: Path, shape: dict[str, Any], **more: Any) -> dict[str, Any]:
    sizes = {"num_npus": 2, "max_model_len": 512, "max_num_batched_tokens": 512}
    return cluster(model(tmp_path, **shape), pp_size=2, **(sizes | more))


def test_the_model_says_which_runner_stages_have_by_default(tmp_path: Path) -> None:
    """Llama's is V2 with one batch more than stages, Qwen3-MoE's V1 with as many; drafts and 0.19
    have neither.
    """
    ahead = lowered(stages(tmp_path, {})).groups[0]
    assert (
        ahead.engine.async_scheduling,
        ahead.engine.use_v2_model_runner,
        ahead.native.depth,
    ) == (True, True, 3)
    assert (ahead.scheduler.decode_interval, ahead.native.stages_wait) == (2, False)
    assert ahead.scheduler.defer_block_free
    behind = lowered(stages(tmp_path, {"experts": 8})).groups[0]
    assert (
        behind.engine.async_scheduling,
        behind.engine.use_v2_model_runner,
        behind.native.depth,
    ) == (True, False, 2)
    assert (behind.scheduler.decode_interval, behind.native.stages_wait) == (1, True)
    given = lowered(stages(tmp_path, {"experts": 8}, use_v2_model_runner=True)).groups[0]
    assert (given.native.depth, given.native.stages_wait) == (3, False)
    for off in (
        {"engine_profile": "vllm-0.19"},
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "acceptance_rate": 0.5,
            }
        },
        {"async_scheduling": False},
    ):
        group = lowered(stages(tmp_path, {}, **off)).groups[0]
        assert not group.engine.async_scheduling and group.native.depth == 2
        assert group.scheduler.defer_block_free == ("engine_profile" not in off)
    together = cluster(model(tmp_path, experts=8), members=2, dp_group="a", pp_size=2, num_npus=2)
    assert "lock-step" in lowered(together).groups[0].engine.origin["async_scheduling"]


def test_0_33_runs_stages_of_every_architecture_by_model_runner_v2(tmp_path: Path) -> None:
    """In 0.24 six architectures; in 0.33 the layout and the drafts alone decide."""
    path = Path(model(tmp_path, experts=8))
    fields = json.loads(path.read_text())
    for name in (
        "MixtralForCausalLM",
        "Qwen3MoeForCausalLM",
        "LlamaForCausalLM",
        "NobodysForCausalLM",
    ):
        path.write_text(json.dumps(fields | {"architectures": [name]}))
        for profile in ("vllm-0.24", "vllm-0.33"):
            engine = {"engine_profile": profile}
            group = lowered(cluster(str(path), pp_size=2, num_npus=2, **engine)).groups[0]
            v2 = profile == "vllm-0.33" or name == "LlamaForCausalLM"
            assert (group.engine.use_v2_model_runner, group.native.depth) == (v2, 3 if v2 else 2)
            assert group.scheduler.decode_interval == (2 if v2 else 1)
    context = cluster(
        str(path),
        pp_size=2,
        num_npus=4,
        prefill_context_parallel_size=2,
        engine_profile="vllm-0.33",
    )
    assert lowered(context).groups[0].engine.use_v2_model_runner is True


def test_0_33_refuses_stages_that_are_scheduled_ahead_by_model_runner_v1(tmp_path: Path) -> None:
    given = {"engine_profile": "vllm-0.33", "use_v2_model_runner": False}
    with pytest.raises(
        InputError, match="Model Runner V2 alone; remove it, or set async_scheduling false"
    ):
        lowered(stages(tmp_path, {}, **given))
    assert (
        lowered(stages(tmp_path, {}, async_scheduling=False, **given)).groups[0].native.depth == 2
    )


@pytest.mark.parametrize(
    ("drafts", "reason"),
    [
        (
            {"method": "draft_model", "model": "MODEL", "parallel_drafting": True},
            "drafts from one pass",
        ),
        ({"method": "draft_model", "model": "MODEL"}, "drafts by draft_model"),
        ({"method": "eagle"}, ""),
    ],
)
def test_drafts_that_do_not_run_ahead_in_0_33_leave_the_default_off(
    tmp_path: Path, drafts: dict[str, Any], reason: str
) -> None:
    config = {"num_speculative_tokens": 2, "acceptance_rate": 0.5} | drafts
    if "model" in config:
        config["model"] = model(tmp_path)
    group = lowered(
        stages(tmp_path, {}, engine_profile="vllm-0.33", speculative_config=config)
    ).groups[0]
    assert group.engine.async_scheduling == (not reason)
    assert reason in group.engine.origin["async_scheduling"]


def test_an_architecture_that_is_named_counts_before_the_type(tmp_path: Path) -> None:
    path = Path(model(tmp_path))
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"architectures": ["SomeWrapperForConditionalGeneration"]}))
    group = lowered(cluster(str(path), pp_size=2, num_npus=2)).groups[0]
    assert group.engine.use_v2_model_runner is False


def test_by_model_runner_v1_a_batch_waits_for_the_tokens_of_the_one_before(tmp_path: Path) -> None:
    """Its stages overlap only behind batches of unfinished prompts; every node in the engine
    agrees.
    """
    at_once = stages(tmp_path, {"experts": 8})
    results, exact = run(at_once, trace=BURST), run(at_once, exact=True, trace=BURST)
    assert set(results.invariants.values()) == {"ok"}
    start, end = np.asarray(results.steps["start_ps"]), np.asarray(results.steps["end_ps"])
    emits = np.asarray(results.steps["decode_sequences"]) > 0
    assert emits[:-1].any() and (start[1:][emits[:-1]] >= end[:-1][emits[:-1]]).all()
    assert (results.requests.finish_ps == exact.requests.finish_ps).all()
    long = "synthetic:n=2,rate=100000,input=fixed:480,output=fixed:4,seed=3"
    chunks = run(at_once | {"nodes": [{"instances": [at_once["nodes"][0]["instances"][0] | {
        "max_num_batched_tokens": 64}]}]}, trace=long)  # fmt: skip
    start, end = np.asarray(chunks.steps["start_ps"]), np.asarray(chunks.steps["end_ps"])
    assert (start[1:] < end[:-1]).any()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {
                "speculative_config": {
                    "method": "mtp",
                    "num_speculative_tokens": 1,
                    "acceptance_rate": 0.5,
                },
                "use_v2_model_runner": False,
            },
            "drafts by Model Runner V1",
        ),
        (
            {"use_v2_model_runner": True, "prefill_context_parallel_size": 2, "num_npus": 4},
            "not run prefill context",
        ),
    ],
)
def test_what_a_runner_does_not_run_is_refused(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        lowered(stages(tmp_path, {}, **({"async_scheduling": True} | more)))


@pytest.mark.parametrize(
    ("instance", "shape", "words"),
    [
        ({"pp_size": 6}, {}, "more than the 5 layers"),
        ({"pp_size": 2, "pp_layers": [2, 2]}, {}, "pp_layers adds up to 4 layers"),
        ({"pp_size": 2, "pp_layers": [5]}, {}, "has 1 entries, but there are 2 stages"),
        (
            {"pp_size": 2, "async_scheduling": True, "engine_profile": "vllm-0.19"},
            {},
            "async_scheduling is true",
        ),
        (
            {"pp_size": 2, "async_scheduling": True, "scheduler": "sarathi"},
            {},
            "async_scheduling",
        ),
        ({"dp_group": "a", "ep_size": 3}, {"experts": 8}, "must divide by 2"),
        ({"dp_group": "a", "ep_size": 4}, {"experts": 8}, "expert ranks per instance"),
        ({"dp_group": "a", "tp_size": 2}, {"experts": 6}, "ep must divide the number of experts 6"),
    ],
)
def test_illegal_layouts_name_the_rule(
    tmp_path: Path, instance: dict[str, Any], shape: dict[str, Any], words: str
) -> None:
    members = 2 if "dp_group" in instance else 1
    with pytest.raises(InputError, match=words):
        lowered(cluster(model(tmp_path, **shape), members=members, **instance))


def test_members_in_lock_step_must_be_alike(tmp_path: Path) -> None:
    unlike = cluster(model(tmp_path, experts=8), members=2, dp_group="a")
    first, second = unlike["nodes"][0]["instances"]
    unlike["nodes"][0]["instances"] = [first, {**second, "max_num_seqs": 8}]
    with pytest.raises(InputError, match=r"instances\[1\]: other engine options"):
        lowered(unlike)


@pytest.mark.parametrize("name", ["ep2", "dp2_tp2_ep4", "dp2_tp2_pp2"])
def test_uneven_experts_fold_too_and_take_longer(tmp_path: Path, name: str) -> None:
    folded, exact = (
        run(document(tmp_path, name), exact=exact, experts="ZIPF:s=1.5") for exact in (False, True)
    )
    assert np.array_equal(folded.steps["end_ps"], exact.steps["end_ps"])
    assert folded.time_shares == exact.time_shares
    assert set(folded.invariants.values()) == {"ok"}
    even = run(document(tmp_path, name))
    busy = [
        sum(sum(share.ps_by_provenance) for share in r.time_shares if share.operator == "moe")
        for r in (folded, even)
    ]
    assert busy[0] > busy[1]


def test_copies_of_experts_need_the_balancer_and_memory(tmp_path: Path) -> None:
    config = load_model(model(tmp_path, experts=8))
    plain, copied = (Layout(2, 2, redundant_experts=copies) for copies in (0, 2))
    expert = next(op for op in operators(config, plain, Dtypes()) if op.kind == "moe")
    more = weight_bytes(config, copied, Dtypes()) - weight_bytes(config, plain, Dtypes())
    assert more == expert.weight_bytes * expert.repeat // 4
    with pytest.raises(InputError, match="enable_eplb"):
        lowered(document(tmp_path, "ep2", num_redundant_experts=2))
    with pytest.raises(InputError, match="ep must divide num_redundant_experts 3"):
        lowered(document(tmp_path, "ep2", num_redundant_experts=3, enable_eplb=True))


def test_ranks_on_several_nodes_talk_over_the_last_link() -> None:
    """The examples differ in nothing but the node of the second rank."""
    times = {}
    for name in ("single_node", "dual_node"):
        cluster = ROOT / "cluster_config" / f"{name}_moe_dp_ep_instance.json"
        options = ["--collective-costs", "links", "--request-routing-policy", "VLLM_DP"]
        dataset = "synthetic:n=4,rate=100,input=512,output=4"
        results = trial(
            checked_options(["--cluster-config", str(cluster), "--dataset", dataset, *options])
        )
        times[name] = sum(
            sum(s.ps_by_provenance) for s in results.time_shares if s.operator == "dispatch"
        )
    assert times["dual_node"] > 4 * times["single_node"] > 0
