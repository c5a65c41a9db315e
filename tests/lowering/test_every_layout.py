"""Every legal layout of up to 16 devices: ranks share the work and bytes of one; random ones fold as they expand."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from llmsim.config.errors import LlmsimError
from llmsim.lowering.layouts import stages_of
from llmsim.model import Dtypes, Layout, ModelConfig, kv_bytes_per_token, layout_problem, load_model, operators
from llmsim.model.exchange import BACKENDS
from llmsim.model.parallel import split_layers

from .clusters import check_folded_is_expanded, cluster, model

DEVICES = 16
POWERS = (1, 2, 4, 8, 16)
SHAPES: dict[str, dict[str, Any]] = {
    "dense": {"kv_heads": 8, "layers": 6},
    "grouped": {"kv_heads": 2, "layers": 5},
    "experts": {"experts": 16, "kv_heads": 8, "layers": 4, "dense_first": 1},
    "latent": {"experts": 16, "latent": True, "shared": 1, "dense_first": 1, "layers": 4},
}
ON_EVERY_RANK = {"moe_gate", "shared_expert_gate", "qkv_a_proj", "kv_a_proj"}
"""Projections that no layout cuts; the router sees 1/tp of the tokens where they are shared out."""
TOKENS = 2 * 16 * 9 * 5 * 7
"""Of each replica; whole shares of it for all layouts."""
FFN = {"gate_up_proj", "down_proj", "shared_expert_up_proj", "shared_expert_down_proj"}


def legal(config: ModelConfig) -> Iterator[Layout]:
    """Every layout of at most DEVICES devices that the rules allow."""
    sizes = [one for one in product(POWERS, repeat=4) if np.prod(one) <= DEVICES]
    for tp, pp, dp, pcp in sizes:
        if pp > config.num_layers or (pcp > 1 and dp > 1):
            continue
        stages = split_layers(config.num_layers, pp) if pp > 1 else ()
        choices = product(POWERS, (1, 2, 4), (False, True), (False, True), BACKENDS if dp > 1 else BACKENDS[:1])
        for ep, dcp, sequence, shared, exchange in choices:
            if shared and (dp == 1 or ep > 1):
                continue
            if dp > 1 and not (config.num_experts or shared):
                continue  # replicas of their own
            layout = Layout(
                tp, ep, dp, stages, sequence_parallel=sequence, prefill_context=pcp, decode_context=dcp,
                exchange=exchange, shared_ffn=shared,
            )  # fmt: skip
            if not layout_problem(config, layout):
                yield layout


def work(config: ModelConfig, layout: Layout, what: str) -> dict[str, int]:
    """By operator: flops of a step in which every replica has TOKENS tokens, or weight bytes, of all ranks together."""
    found: dict[str, int] = {}
    ranks = layout.stage_ranks * layout.dp
    for stage in stages_of(layout):
        for op in operators(config, stage, Dtypes()):
            if op.kind not in ("gemm", "moe") or op.name == "lm_head":
                continue
            if what == "weights":
                each = op.weight_bytes
            else:
                tokens = TOKENS * (layout.dp if op.feature == "gathered" else 1) // layout.prefill_context
                each = op.flops_per_token * tokens * op.units[0] // op.units[1]
            found[op.name] = found.get(op.name, 0) + each * op.repeat * ranks
    return found


def times_held(name: str, layout: Layout) -> int:
    """How often all ranks together have the weights of an operator."""
    if name == "moe":
        return 1
    replicas = layout.prefill_context * (1 if layout.shared_ffn and name in FFN else layout.dp)
    whole = name in ON_EVERY_RANK or (name.startswith("shared_expert") and layout.shares_tokens_out)
    return replicas * (layout.tp if whole else 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_share_work_and_bytes(tmp_path: Path, shape: str) -> None:
    config = load_model(model(tmp_path, **SHAPES[shape]))
    flops, weights = (work(config, Layout(), what) for what in ("flops", "weights"))
    kv, checked = kv_bytes_per_token(config, Layout(), Dtypes()), 0
    for layout in legal(config):
        checked += 1
        copies = 1 if config.latent is not None else max(1, layout.tp // config.num_key_value_heads)
        for name, total in work(config, layout, "flops").items():
            once = flops[name] * layout.dp
            if name in ON_EVERY_RANK:
                assert once <= total <= once * layout.tp * layout.prefill_context, (layout, name)
            elif name == "qkv_proj" and copies > 1:
                assert once < total < once * copies, (layout, name)
            else:
                assert total == once, (layout, name)
        for name, total in work(config, layout, "weights").items():
            once = weights[name] * times_held(name, layout)
            if name == "qkv_proj" and copies > 1:
                assert once < total < once * copies, (layout, name)
            else:
                assert total == once, (layout, name)
        held = [kv_bytes_per_token(config, stage, Dtypes()) for stage in stages_of(layout)]
        heads = layout.tp if config.latent is not None else copies
        assert sum(held) * layout.tp == kv * heads
    assert checked > 30


@st.composite
def instances(draw: st.DrawFn) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Shape of a model, members of its group, keys of an instance: any layout, legal or not."""
    experts = draw(st.sampled_from([0, 8, 16]))
    shape = {
        "experts": experts, "layers": draw(st.integers(2, 6)), "kv_heads": draw(st.sampled_from([1, 2, 4, 8])),
        "latent": bool(experts) and draw(st.booleans()), "dense_first": draw(st.integers(0, 2)) if experts else 0,
    }  # fmt: skip
    if shape["latent"]:
        shape["shared"] = draw(st.integers(0, 1))
    tp, pp, pcp = (draw(st.sampled_from(choices)) for choices in ((1, 2, 4, 8), (1, 1, 2, 3), (1, 1, 1, 2)))
    members = draw(st.sampled_from([1, 1, 2, 4])) if pcp == 1 else 1
    keys: dict[str, Any] = {"num_npus": tp * pp * pcp, "tp_size": tp}
    if pp > 1:
        keys["pp_size"] = pp
    if pcp > 1:
        keys["prefill_context_parallel_size"] = pcp
    if draw(st.booleans()):
        keys["decode_context_parallel_size"] = draw(st.sampled_from([1, 2]))
    if draw(st.integers(0, 3)) == 0:
        keys["enable_sequence_parallelism"] = True
    if members > 1:
        keys["dp_group"] = "a"
    if experts and draw(st.booleans()):
        keys["ep_size"] = draw(st.sampled_from([1, tp * pcp, tp * pcp * members]))
    if experts and members > 1:
        keys["all2all_backend"] = draw(st.sampled_from(BACKENDS))
    assume(tp * pp * pcp * members <= DEVICES)
    return shape, members, keys


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(instances(), st.sampled_from(["BALANCED", "RAND", "ZIPF:s=1.2"]), st.integers(0, 9))
def test_any_layout_folds_as_it_expands(
    tmp_path: Path, case: tuple[dict[str, Any], int, dict[str, Any]], routing: str, seed: int
) -> None:
    shape, members, keys = case
    document = cluster(model(tmp_path, **shape), members=members, **keys)
    trace = f"synthetic:n=6,rate=2000,input=lognormal:80,output=lognormal:5,seed={seed}"
    try:
        check_folded_is_expanded(document, trace=trace, experts=routing)
    except LlmsimError as error:
        assert str(error).count("\n") == 0
