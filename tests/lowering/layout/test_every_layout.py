"""Every legal layout of up to 16 devices: ranks share the work and bytes of one; random ones fold
as they expand.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from llmsim.config.errors import LlmsimError
from llmsim.lowering.parallel_layout import stages_of
from llmsim.model import Dtypes, Layout, ModelConfig, kv_bytes_per_token, load_model, operators
from llmsim.model.parallel.expert_parallel import BACKENDS
from tests.engine.command import build_command

from ..clusters import check_folded_is_expanded, cluster, model
from ..layout.legal import (
    DEVICES,
    DRAFTS,
    SHAPES,
    check_graph,
    check_layout,
    legal,
    representatives,
)

ON_EVERY_RANK = {
    "moe_gate",
    "shared_expert_gate",
    "qkv_a_proj",
    "kv_a_proj",
    "moe_latent_in",
    "moe_latent_out",
}
ON_EVERY_RANK |= {"indexer_q_proj", "indexer_k_proj"}
"""Projections that no layout cuts; the router sees 1/tp of the tokens where they are shared out."""
REPEATED: dict[str, Callable[[ModelConfig, Layout], int]] = {
    "qkv_proj": lambda config, layout: layout.tp // config.num_key_value_heads,
    "linear_in_proj": lambda _, layout: layout.tp,
}
"""Projections of which ranks share a part: heads of keys and values, the one group of state spaces;
how often.
"""
TOKENS = 16 * 9 * 5 * 7 * 11 * 13
"""Of each replica; whole shares of it for all layouts."""
FFN = {"gate_up_proj", "up_proj", "down_proj", "shared_expert_up_proj", "shared_expert_down_proj"}


def work(config: ModelConfig, layout: Layout, what: str) -> dict[str, int]:
    """By operator: flops of a step in which every replica has TOKENS tokens, or weight bytes, of
    all ranks together.
    """
    found: dict[str, int] = {}
    ranks = layout.stage_ranks * layout.dp
    for stage in stages_of(layout):
        for op in operators(config, stage, Dtypes()):
            if op.kind not in ("gemm", "moe") or op.name == "lm_head":
                continue
            if what == "weights":
                each = op.weight_bytes
            else:
                tokens = (
                    TOKENS
                    * (layout.dp if op.feature == "gathered" else 1)
                    // layout.prefill_context
                )
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
                most = layout.tp * layout.prefill_context * (layout.dp if layout.shared_ffn else 1)
                assert once <= total <= once * most, (layout, name)
            elif name in REPEATED and REPEATED[name](config, layout) > 1:
                assert once < total < once * REPEATED[name](config, layout), (layout, name)
            else:
                assert total == once, (layout, name)
        for name, total in work(config, layout, "weights").items():
            once = weights[name] * times_held(name, layout)
            if name in REPEATED and REPEATED[name](config, layout) > 1:
                assert once < total < once * REPEATED[name](config, layout), (layout, name)
            else:
                assert total == once, (layout, name)
        held = [kv_bytes_per_token(config, stage, Dtypes()) for stage in stages_of(layout)]
        heads = layout.tp if config.latent is not None else copies
        assert sum(held) * layout.tp == kv * heads
    assert checked > 30


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "twelve"])
def test_every_structure_folds_as_it_expands(tmp_path: Path, shape: str) -> None:
    """One layout of each structure, with every all-to-all backend for two models;
    `evaluation/layouts.py` runs all.
    """
    path = model(tmp_path, **SHAPES[shape])
    config = load_model(path)
    backends = BACKENDS if shape in ("experts", "latent") else BACKENDS[:1]
    found = [layout for layout in representatives(config) if layout.exchange in backends]
    for number, layout in enumerate(found):
        check_layout(path, config, layout, number)
    assert len(found) > 15


@pytest.mark.parametrize("shape", ["dense", "windows", "experts"])
def test_the_engine_takes_as_long_for_the_traces_of_every_structure(
    tmp_path: Path, shape: str
) -> None:
    """`evaluation/layouts.py` runs all layouts of all shapes."""
    path = model(tmp_path, **SHAPES[shape])
    config, command = load_model(path), build_command()
    found = representatives(config)
    for number, layout in enumerate(found):
        check_graph(path, config, layout, number, command, tmp_path / str(number))
    assert len(found) > 15


def test_the_engine_takes_as_long_for_the_traces_of_drafters(tmp_path: Path) -> None:
    """Members of a lock-step group draft apart, also where they share their FFN."""
    path = model(tmp_path, **SHAPES["dense"])
    config, command = load_model(path), build_command()
    found = [
        layout
        for layout in representatives(config)
        if not layout.sequence_parallel and layout.context_ranks == 1
    ]
    for number, layout in enumerate(found):
        folder = tmp_path / str(number)
        check_graph(path, config, layout, number, command, folder, speculative_config=DRAFTS)
    assert sum(layout.shared_ffn for layout in found) >= 6


@st.composite
def instances(draw: st.DrawFn) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Shape of a model, members of its group, keys of an instance: any layout, legal or not."""
    experts = draw(st.sampled_from([0, 8, 16]))
    shape = {
        "experts": experts,
        "layers": draw(st.integers(2, 6)),
        "kv_heads": draw(st.sampled_from([1, 2, 4, 8])),
        "latent": bool(experts) and draw(st.booleans()),
        "dense_first": draw(st.integers(0, 2)) if experts else 0,
    }
    if shape["latent"]:
        shape["shared"] = draw(st.integers(0, 1))
    tp, pp, pcp = (
        draw(st.sampled_from(choices)) for choices in ((1, 2, 4, 8), (1, 1, 2, 3), (1, 1, 1, 2))
    )
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


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
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
