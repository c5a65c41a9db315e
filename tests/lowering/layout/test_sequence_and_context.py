"""Sequence and context parallelism: folded equals expanded, work is conserved, one rank is none,
rules have names.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config.errors import InputError, NotYetError
from llmsim.core import FEATURES
from llmsim.lowering.kv.tiers import bytes_per_token
from llmsim.lowering.parallel_layout import stage_operators
from llmsim.model import Collective, Dtypes, Layout, kv_bytes_per_token, load_model, operators
from llmsim.results.devices.utilisation import group_usage, operator_work

from ..clusters import check_folded_is_expanded, cluster, lowered, model, run

SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {"kv_heads": 2},
    "mla": {"latent": True, "experts": 8},
    "moe": {"experts": 8, "kv_heads": 2},
}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sp2": ("gqa", {"tp_size": 2, "enable_sequence_parallelism": True}),
    "sp4_moe": ("moe", {"tp_size": 4, "enable_sequence_parallelism": True}),
    "sp2_pp2": ("gqa", {"tp_size": 2, "pp_size": 2, "enable_sequence_parallelism": True}),
    "dcp2": ("gqa", {"tp_size": 4, "decode_context_parallel_size": 2}),
    "dcp4_of_8": ("gqa", {"tp_size": 8, "decode_context_parallel_size": 4}),
    "dcp2_mla": ("mla", {"tp_size": 2, "decode_context_parallel_size": 2}),
    "dcp2_of_4_mla": ("mla", {"tp_size": 4, "decode_context_parallel_size": 2}),
    "dcp2_pp2": ("gqa", {"tp_size": 4, "pp_size": 2, "decode_context_parallel_size": 2}),
    "dcp2_sp": (
        "gqa",
        {"tp_size": 4, "decode_context_parallel_size": 2, "enable_sequence_parallelism": True},
    ),
    "dcp2_dp2": ("moe", {"tp_size": 4, "decode_context_parallel_size": 2, "dp_group": "a"}),
    "pcp2": ("gqa", {"tp_size": 1, "prefill_context_parallel_size": 2}),
    "pcp4_tp2": ("gqa", {"tp_size": 2, "prefill_context_parallel_size": 4}),
    "pcp2_mla": ("mla", {"tp_size": 2, "prefill_context_parallel_size": 2}),
    "pcp2_moe": ("moe", {"tp_size": 2, "prefill_context_parallel_size": 2}),
    "pcp2_dcp2": (
        "gqa",
        {"tp_size": 4, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
    ),
    "pcp2_pp2": ("gqa", {"num_npus": 8, "pp_size": 2, "prefill_context_parallel_size": 2}),
}


def document(tmp_path: Path, name: str, **more: Any) -> dict[str, Any]:
    shape, instance = LAYOUTS[name]
    members = 2 if "dp_group" in instance else 1
    return cluster(model(tmp_path, **SHAPES[shape]), members=members, **instance, **more)


@pytest.mark.parametrize("name", LAYOUTS)
def test_folded_equals_expanded(tmp_path: Path, name: str) -> None:
    check_folded_is_expanded(document(tmp_path, name))


def total(ops: Any, what: str, kinds: tuple[str, ...] = ("gemm", "moe")) -> int:
    """Of one token that every rank sees, layers together; shares of tokens counted as such."""
    found = 0
    for op in ops:
        if op.kind in kinds and op.name != "moe_gate":
            share, of = op.units
            found += op.repeat * getattr(op, what) * share // of
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_share_the_flops_of_one(tmp_path: Path, name: str) -> None:
    """GEMMs: a rank's tokens times its flops, on all ranks, are the whole model's; attention: pairs
    are shared out.
    """
    config = load_model(model(tmp_path, **SHAPES[LAYOUTS[name][0]]))
    layout = lowered(document(tmp_path, name)).groups[0].layout
    whole = operators(config, Layout(), Dtypes())
    stages = stage_operators(config, layout, Dtypes())
    replicated = ["qkv_a_proj", "kv_a_proj"]  # of latent attention, on every tensor-parallel rank
    replicated += ["qkv_proj"] * (layout.tp > config.num_key_value_heads)
    kept = [op for ops in stages for op in ops if op.name not in replicated]
    alone = total([op for op in whole if op.name not in replicated], "flops_per_token")
    own = (
        total([op for op in kept if op.feature != "gathered"], "flops_per_token")
        * layout.stage_ranks
    )
    shared = (
        total([op for op in kept if op.feature == "gathered"], "flops_per_token")
        * layout.expert_ranks
    )
    # With prompts shared out a rank has 1/pcp of the tokens; experts see those of all of them
    # (units), ep counts all.
    assert own / layout.prefill_context + shared == pytest.approx(alone, rel=1e-12)
    for what in ("flops_per_context_token", "decode_flops_per_context_token"):
        pairs = total(kept, what, ("attention",)) * layout.stage_ranks
        assert pairs == total(whole, what, ("attention",))


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_read_the_kv_of_one_as_often_as_it_is_stored(tmp_path: Path, name: str) -> None:
    """What all ranks read for a cached token is what they store of it: dealt by tokens, repeated
    only by heads.
    """
    config = load_model(model(tmp_path, **SHAPES[LAYOUTS[name][0]]))
    layout = lowered(document(tmp_path, name)).groups[0].layout
    one = next(op for op in operators(config, Layout(), Dtypes()) if op.kind == "attention")
    ours = next(op for op in operators(config, layout, Dtypes()) if op.kind == "attention")
    copies = (
        layout.tp if config.latent is not None else max(1, layout.tp // config.num_key_value_heads)
    )
    stored = one.kv_bytes_per_context_token * copies // layout.decode_context
    assert ours.kv_bytes_per_context_token * layout.stage_ranks == stored


@pytest.mark.parametrize("shape", SHAPES)
def test_one_rank_is_no_rank(tmp_path: Path, shape: str) -> None:
    path = model(tmp_path, **SHAPES[shape])
    keys = {
        "enable_sequence_parallelism": True,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
    }
    plain, named = run(cluster(path)), run(cluster(path, **keys))
    assert np.array_equal(plain.requests.finish_ps, named.requests.finish_ps)
    assert plain.time_shares == named.time_shares


def test_sequence_parallelism_moves_as_many_bytes_and_norms_see_a_share(tmp_path: Path) -> None:
    config = load_model(model(tmp_path, kv_heads=2))
    plain, split = (
        operators(config, Layout(4, sequence_parallel=on), Dtypes()) for on in (False, True)
    )

    def rings(ops: Any) -> int:
        """Of the whole tensor: an all-reduce passes it twice."""
        times = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
        found = [op for op in ops if op.kind == "collective" and op.feature == "tokens"]
        return sum(op.repeat * op.collective_bytes_per_token * times[op.collective] for op in found)

    assert rings(plain) == rings(split) > 0
    collectives = [op.collective for op in split if isinstance(op, Collective)]
    assert "all_reduce" not in collectives
    norms = [op for op in split if "layernorm" in op.name]
    assert norms and {op.units_of(8) for op in norms} == {2}
    assert [op.name for op in split if op.kind != "collective"] == [
        op.name for op in plain if op.kind != "collective"
    ]


def test_steps_are_padded_so_that_ranks_have_as_many_tokens(tmp_path: Path) -> None:
    results = run(document(tmp_path, "sp4_moe", cuda_graph_sizes=[1, 2, 4, 10, 16]))
    padded = np.unique(np.asarray(results.steps["padded_tokens"]))
    assert (padded % 4 == 0).all()
    assert {4, 16} <= set(padded.tolist())  # graphs of 1, 2 and 10 tokens are not captured
    assert 12 not in padded


@pytest.mark.parametrize(
    ("name", "ranks"), [("dcp2", 2), ("dcp4_of_8", 4), ("pcp4_tp2", 4), ("pcp2_dcp2", 4)]
)
def test_the_cache_is_dealt_by_tokens(tmp_path: Path, name: str, ranks: int) -> None:
    """As many blocks of as many bytes on a rank; each holds the tokens of all ranks."""
    document_ = document(tmp_path, name, num_gpu_blocks_override=None)
    group = lowered(document_).groups[0]
    plain = {key: value for key, value in LAYOUTS[name][1].items() if "context" not in key}
    alone = lowered(
        cluster(model(tmp_path, kv_heads=2), **plain, num_gpu_blocks_override=None)
    ).groups[0]
    assert group.info.block_size == 16 * ranks == alone.info.block_size * ranks
    assert group.ledger.block_bytes == alone.ledger.block_bytes
    assert group.info.num_blocks == alone.info.num_blocks
    assert kv_bytes_per_token(group.model, group.layout, Dtypes()) == group.ledger.block_bytes // 16
    assert any("context-parallel" in note for note in group.ledger.notes)


@pytest.mark.parametrize(
    ("heads", "keys", "copies"),
    [
        (2, {"tp_size": 8, "decode_context_parallel_size": 4}, 1),
        (2, {"tp_size": 8, "decode_context_parallel_size": 2}, 2),
        (2, {"tp_size": 8}, 4),
        (4, {"num_npus": 8, "tp_size": 4, "prefill_context_parallel_size": 2}, 1),
        (2, {"num_npus": 16, "tp_size": 4, "pp_size": 2, "prefill_context_parallel_size": 2}, 2),
    ],
)
def test_tiers_hold_what_all_ranks_hold(
    tmp_path: Path, heads: int, keys: dict[str, Any], copies: int
) -> None:
    """A token's KV is on each of the ranks that share its head's cache once between them."""
    group = lowered(cluster(model(tmp_path, kv_heads=heads, layers=4), **keys)).groups[0]
    sizes = bytes_per_token(group)
    assert len(sizes) == keys.get("num_npus", keys["tp_size"])
    assert sum(sizes) == copies * kv_bytes_per_token(group.model, Layout(), Dtypes())


def test_long_decodes_are_faster_with_their_context_dealt_out(tmp_path: Path) -> None:
    long = "synthetic:n=8,rate=1000,input=3500,output=32,seed=1"
    path = model(tmp_path, kv_heads=1)
    plain, dealt = (
        run(cluster(path, tp_size=8, decode_context_parallel_size=ranks, links=900), trace=long)
        for ranks in (1, 8)
    )

    def attention(results: Any) -> int:
        return sum(
            sum(s.ps_by_provenance) for s in results.time_shares if s.operator == "attention"
        )

    assert attention(dealt) < attention(plain)


def test_prompts_are_shared_out_and_decodes_are_not(tmp_path: Path) -> None:
    """A prompt of 400 tokens on four ranks: each computes 100; decodes run on all."""
    one = "synthetic:n=1,rate=1,input=400,output=6,seed=1"
    keys = {
        "max_num_batched_tokens": 512,
        "cuda_graph_sizes": [1],
        "prefill_context_parallel_size": 4,
    }
    results = run(cluster(model(tmp_path, kv_heads=2), **keys), trace=one)
    padded = np.asarray(results.steps["padded_tokens"])
    assert padded[0] == 100 and set(padded[1:].tolist()) == {1}
    rows = dict(zip(FEATURES, results.table_rows[0], strict=True))
    assert rows["prefills"][400] == 1
    assert rows["decodes"][1] == 5
    usage = group_usage(results, 0)
    group = lowered(cluster(model(tmp_path, kv_heads=2), **keys)).groups[0]
    up = next(op for op in group.operators if op.name == "gate_up_proj")
    assert operator_work(up, usage).flops == up.flops_per_token * up.repeat * 105


def test_a_long_prompt_is_faster_on_more_ranks(tmp_path: Path) -> None:
    one = "synthetic:n=1,rate=1,input=4000,output=2,seed=1"
    path, first = model(tmp_path, kv_heads=2, width=8192), []
    for ranks in (1, 2, 4):
        keys = {
            "prefill_context_parallel_size": ranks,
            "max_num_batched_tokens": 4096,
            "launch_ns": 0,
            "links": 900,
        }
        requests = run(cluster(path, **keys), trace=one).requests
        first.append(int(requests.first_token_ps[0] - requests.arrival_ps[0]))
    assert first[0] > first[1] > first[2] > first[0] // 4


@given(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_legal_context_layouts_conserve_pairs(kv: int, tp: int, dcp: int, pcp: int) -> None:
    """Random layouts are either refused with their rule, or have all pairs on all ranks exactly
    once.
    """
    config = _config(1 << kv)
    layout = Layout(1 << tp, 1, prefill_context=1 << pcp, decode_context=1 << dcp)
    try:
        ops = operators(config, layout, Dtypes())
    except InputError as error:
        assert "decode_context_parallel_size" in str(error)
        assert max(1, layout.tp // config.num_key_value_heads) % layout.decode_context
        return
    mine = next(op for op in ops if op.kind == "attention")
    one = next(op for op in operators(config, Layout(), Dtypes()) if op.kind == "attention")
    assert mine.flops_per_context_token * layout.stage_ranks == one.flops_per_context_token
    names = {op.name for op in ops if op.kind == "collective"}
    assert ("query_gather" in names) == (layout.decode_context > 1)
    assert ("kv_gather" in names) == (layout.prefill_context > 1)


def _config(kv_heads: int) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return load_model(model(Path(folder), kv_heads=kv_heads))


@pytest.mark.parametrize(
    ("shape", "instance", "words"),
    [
        (
            "gqa",
            {"tp_size": 2, "decode_context_parallel_size": 2},
            "tp 2 must be a multiple of 2 x num_key_value_heads 2",
        ),
        ("mla", {"tp_size": 2, "decode_context_parallel_size": 4}, "must divide tp 2"),
        (
            "gqa",
            {"num_npus": 4, "tp_size": 2, "prefill_context_parallel_size": 3},
            "must divide num_npus, which is 4",
        ),
        (
            "moe",
            {"tp_size": 2, "dp_group": "a", "enable_sequence_parallelism": True},
            "shares tokens out",
        ),
    ],
)
def test_illegal_layouts_name_the_rule(
    tmp_path: Path, shape: str, instance: dict[str, Any], words: str
) -> None:
    members = 2 if "dp_group" in instance else 1
    with pytest.raises(InputError, match=words):
        lowered(cluster(model(tmp_path, **SHAPES[shape]), members=members, **instance))


def test_drafts_of_shared_out_sequences_are_refused(tmp_path: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "acceptance_rate": [0.5, 0.5]}
    for keys, words in (
        ({"tp_size": 4, "decode_context_parallel_size": 2}, "context parallelism"),
        ({"tp_size": 2, "enable_sequence_parallelism": True}, "sequence parallelism"),
    ):
        with pytest.raises(NotYetError, match=words):
            lowered(cluster(model(tmp_path, kv_heads=2), speculative_config=drafts, **keys))


def test_what_does_not_run_together_is_refused(tmp_path: Path) -> None:
    keys = {"prefill_context_parallel_size": 2, "dp_group": "a"}
    with pytest.raises(NotYetError, match="experts that data-parallel ranks share"):
        lowered(cluster(model(tmp_path, experts=8), members=2, **keys))
