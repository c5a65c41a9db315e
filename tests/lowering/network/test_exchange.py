"""Exchanges of tokens between data-parallel ranks: each backend's messages, bytes that follow the
routing, memory.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.costs.experts.load_sampling import LayerDraws, place
from llmsim.lowering.network.all_to_all import Busiest, Ports, drawn_rows, even_rows
from llmsim.model import Dtypes, Layout, load_model, operators, weight_bytes
from llmsim.model.operator import Rows
from llmsim.model.parallel.expert_parallel import BACKENDS, SLOTS

from ..clusters import check_folded_is_expanded, cluster, lowered, model, run

PREFILL = "synthetic:n=12,rate=100000,input=200,output=4,seed=3"


def document(
    tmp_path: Path, backend: str, *, experts: int = 8, members: int = 2, **more: Any
) -> dict[str, Any]:
    keys = {"dp_group": "a", "all2all_backend": backend, **more}
    return cluster(model(tmp_path, experts=experts), members=members, **keys)


def traffic(results: Any, *names: str) -> int:
    """ps of the exchange in all groups."""
    found = [s for s in results.time_shares if s.operator in (names or ("dispatch", "combine"))]
    return sum(sum(share.ps_by_provenance) for share in found)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("experts", ["BALANCED", "ZIPF:s=1.2"])
def test_folded_equals_expanded(tmp_path: Path, backend: str, tp: int, experts: str) -> None:
    check_folded_is_expanded(document(tmp_path, backend, tp_size=tp), experts=experts)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tp", [1, 2])
def test_ranks_share_the_flops_of_one(tmp_path: Path, backend: str, tp: int) -> None:
    config = load_model(model(tmp_path, experts=8, shared=1, dense_first=1))
    layout = (
        lowered(
            cluster(
                model(tmp_path, experts=8, shared=1, dense_first=1),
                members=2,
                dp_group="a",
                tp_size=tp,
                all2all_backend=backend,
            )
        )
        .groups[0]
        .layout
    )

    def flops(ops: Any, gathered: bool) -> float:
        kept = [
            op
            for op in ops
            if op.kind in ("gemm", "moe") and "_a_proj" not in op.name and op.name != "moe_gate"
        ]
        mine = [op for op in kept if (op.feature == "gathered") == gathered]
        return sum(op.repeat * op.flops_per_token * op.units[0] / op.units[1] for op in mine)

    whole, ours = operators(config, Layout(), Dtypes()), operators(config, layout, Dtypes())
    assert flops(ours, False) * layout.tp + flops(ours, True) * layout.expert_ranks == flops(
        whole, False
    )


def test_tokens_are_shared_out_where_every_rank_holds_whole_experts(tmp_path: Path) -> None:
    """vLLM's use_sequence_parallel_moe: gathers behind the experts in place of the all-reduce,
    whole shared experts.
    """
    path = model(tmp_path, experts=8, shared=1)
    config = load_model(path)
    shared_out, cut = (Layout(2, ep, 2) for ep in (4, 2))
    names = [
        [op.name for op in operators(config, layout, Dtypes())] for layout in (shared_out, cut)
    ]
    assert "tokens_gather" in names[0] and "tokens_gather" not in names[1]
    gate = next(op for op in operators(config, shared_out, Dtypes()) if op.name == "moe_gate")
    assert gate.units_of(7) == 4
    ups = [
        next(op for op in operators(config, layout, Dtypes()) if op.name == "shared_expert_up_proj")
        for layout in (shared_out, cut)
    ]
    assert ups[0].weight_bytes == 2 * ups[1].weight_bytes
    assert weight_bytes(config, shared_out, Dtypes()) > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_of_a_token(tmp_path: Path, backend: str) -> None:
    """Four ranks, top 2 of 8 experts of 512 elements: by hand."""
    config = load_model(model(tmp_path, experts=8))
    ops = {op.name: op for op in operators(config, Layout(1, 4, 4, exchange=backend), Dtypes())}
    there, back = (
        ops["dispatch"].collective_bytes_per_token,
        ops["combine"].collective_bytes_per_token,
    )
    row = 512 * 2
    missed = (6 * 5) / (
        8 * 7
    )  # a rank with two of eight experts is chosen by neither of two choices
    expected = {
        "allgather_reducescatter": (row + 8 * 2, row),
        "naive": (row + 8 * 2, row),
        "pplx": (2 * 3 / 4 * row, 2 * 3 / 4 * row),
        "deepep_high_throughput": (3 * (1 - missed) * (row + 2 * 12), 3 * (1 - missed) * row),
        "deepep_low_latency": (2 * 3 / 4 * (row + 16), 2 * 3 / 4 * row),
    }[backend]
    assert (there, back) == tuple(round(size) for size in expected)
    kinds = (ops["dispatch"].collective, ops["combine"].collective)
    assert kinds == {
        "allgather_reducescatter": ("all_gather", "reduce_scatter"),
        "naive": ("broadcast", "all_reduce"),
    }.get(backend, ("all_to_all", "all_to_all"))


def test_fp8_experts_are_sent_fp8_rows_with_their_scales(tmp_path: Path) -> None:
    config = load_model("deepseek-ai/DeepSeek-V3")
    dtypes = Dtypes("fp8", "bf16", "bf16")
    ops = {
        op.name: op
        for op in operators(config, Layout(1, 32, 32, exchange="deepep_low_latency"), dtypes)
    }
    assert ops["dispatch"].rows == Rows("expert", 7168 + 7168 // 128 * 4 + 16, SLOTS)
    assert ops["combine"].rows == Rows("expert", 7168 * 2, SLOTS, back=True)


@pytest.mark.parametrize("backend", ["pplx", "deepep_high_throughput", "deepep_low_latency"])
def test_skew_moves_bytes(tmp_path: Path, backend: str) -> None:
    """The busiest port paces the exchange: with preferred experts it takes longer than
    with none.
    """
    keys = {"members": 4, "experts": 16, "links": [1, 1], "max_num_batched_tokens": 2048}
    where = document(tmp_path, backend, **keys)
    even, skewed = (traffic(run(where, trace=PREFILL, experts=how)) for how in ("RAND", "ZIPF:s=2"))
    assert skewed > 1.2 * even


def test_gathers_do_not_see_the_skew(tmp_path: Path) -> None:
    where = document(tmp_path, "allgather_reducescatter", members=4, links=[1, 1])
    layers = [
        next(
            op
            for op in lowered(where, experts=how).groups[0].program_costs
            if op.name == "dispatch"
        )
        for how in ("BALANCED", "ZIPF:s=2")
    ]
    assert np.array_equal(layers[0].ps, layers[1].ps) and layers[1].sampled is None


@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize("per", ["expert", "rank"])
def test_drawn_and_even_rows_are_those_of_tokens_that_choose_one_by_one(
    per: str, groups: tuple[int, int]
) -> None:
    """400 tokens choose 4 of 16 experts, in some of the groups; eight ranks on two nodes."""
    rng = np.random.default_rng(3)
    tokens, experts, topk = 400, 16, 4
    counts, rank, node = np.zeros((200, experts), np.int64), [], []
    for draw in range(200):
        scores = rng.random((tokens, experts))
        others = np.argsort(rng.random((tokens, groups[0])), axis=1)[:, groups[1] :]
        by_group = scores.reshape(tokens, groups[0], -1)
        np.put_along_axis(by_group, others[..., None], 2.0, axis=1)
        chosen = np.argsort(scores, axis=1)[:, :topk]
        counts[draw] = np.bincount(chosen.ravel(), minlength=experts)
        for found, held in ((rank, experts // 8), (node, experts // 2)):
            there = np.zeros((tokens, experts // held))
            np.put_along_axis(there, chosen // held, 1.0, axis=1)
            every = np.bincount((chosen // held).ravel(), minlength=experts // held)
            found.append(there.sum(axis=0) if per == "rank" else every)
    ports = Ports(8, 2, (1, 0), (1, 0))
    rows = Rows(per, 1)  # type: ignore[arg-type]
    op = replace(
        next(
            op
            for op in operators(_sixteen(), Layout(1, 8, 8, exchange="pplx"), Dtypes())
            if op.name == "dispatch"
        ),
        expert_groups=groups,
    )
    slots = place(np.ones(experts) / experts, _placement(8))
    draws = LayerDraws(0, counts[:, None], slots, np.full(groups[0], groups[1] / groups[0]))
    to_rank, to_node = drawn_rows(rows, draws, ports, np.array([tokens]), op)
    even = even_rows(rows, op, ports, np.array([float(tokens)]))
    assert even.rank[0] == pytest.approx(np.mean(rank), rel=0.01)
    assert even.node[0] == pytest.approx(np.mean(node), rel=0.01)
    assert to_rank.mean() == pytest.approx(np.mean(rank), rel=0.03)
    assert to_node.mean() == pytest.approx(np.mean(node), rel=0.03)


def _placement(ranks: int) -> Any:
    from llmsim.costs.experts.load_sampling import Placement

    return Placement(ranks)


def _sixteen() -> Any:
    import json
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(model(Path(folder), experts=16))
        shape = json.loads(path.read_text())
        path.write_text(json.dumps({**shape, "num_experts_per_tok": 4}))
        return load_model(str(path))


def test_rows_of_one_token_cross_the_network_once_for_each_node() -> None:
    """Two nodes of two ranks; a token whose experts are on both ranks of the other node: one row
    over the network.
    """
    ports = Ports(4, 2, (10**9, 0), (10**9, 0))
    tokens = np.array(4.0)
    by_rank = ports.ps(Rows("rank", 1000), tokens, Busiest(np.array(4.0), np.array(4.0)))
    by_expert = ports.ps(Rows("expert", 1000), tokens, Busiest(np.array(4.0), np.array(8.0)))
    # Half of the four tokens are on the other node: two rows, one over each of the node's two
    # network cards; handed on inside, each rank gets half of its four rows from its neighbour.
    # Straight: two of four rows over each card.
    assert by_rank == max(1 * 1000, 2 * 1000) * 1000
    assert by_expert == 2 * 1000 * 1000


def test_low_latency_goes_in_rounds() -> None:
    ports = Ports(4, 1, (10**12, 5000), (10**12, 9000))
    rows = Rows("expert", 1, slots=SLOTS)
    nothing = Busiest(np.zeros(()), np.zeros(()))
    for tokens, rounds in ((1, 1), (4 * SLOTS, 1), (4 * SLOTS + 1, 2), (9 * SLOTS, 3)):
        assert ports.ps(rows, np.array(float(tokens)), nothing) == rounds * 5000


def test_buffers_are_in_the_ledger(tmp_path: Path) -> None:
    blocks = {
        backend: lowered(document(tmp_path, backend, num_gpu_blocks_override=None))
        .groups[0]
        .ledger.num_blocks
        for backend in BACKENDS
    }
    assert blocks["naive"] == blocks["allgather_reducescatter"]
    assert all(
        blocks[b] < blocks["naive"]
        for b in ("pplx", "deepep_high_throughput", "deepep_low_latency")
    )


def test_far_ranks_are_felt(tmp_path: Path) -> None:
    path = model(tmp_path, experts=8)
    for backend in ("pplx", "deepep_high_throughput", "deepep_low_latency", "naive"):
        keys = {"dp_group": "a", "all2all_backend": backend}
        near = cluster(path, members=4, links=[900, 900], **keys)
        far = cluster(path, members=2, nodes=2, links=[900, 5], **keys)
        assert traffic(run(far, trace=PREFILL)) > traffic(run(near, trace=PREFILL)), backend


@pytest.mark.parametrize(
    ("instance", "words"),
    [
        ({"all2all_backend": "deepep"}, "all2all_backend"),
        (
            {"all2all_backend": "pplx", "ep_size": 2, "tp_size": 2},
            "whole experts, so ep must be tp x dp = 4",
        ),
    ],
)
def test_illegal_exchanges_name_the_rule(
    tmp_path: Path, instance: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        lowered(cluster(model(tmp_path, experts=8), members=2, dp_group="a", **instance))


def test_a_recording_is_replayed_step_by_step(tmp_path: Path) -> None:
    """Steps take the recorded loads in turn: every second one has all rows on the first of four
    ranks.
    """
    even, first = [1] * 8, [1, 1, 0, 0, 0, 0, 0, 0]
    path = tmp_path / "steps.jsonl"
    path.write_text("\n".join(json.dumps([loads] * 3) for loads in (even, first)), encoding="utf-8")
    where = cluster(model(tmp_path, experts=8, layers=3), num_npus=4, tp_size=4, ep_size=4)
    alone = "synthetic:n=1,rate=1,input=fixed:8,output=fixed:33"
    results = check_folded_is_expanded(where, trace=alone, experts=f"REPLAY:{path}")
    took = (results.steps["end_ps"] - results.steps["start_ps"])[1:33]  # decodes of one sequence
    a, b = took[0::2], took[1::2]
    assert (max(a) < min(b)) or (max(b) < min(a))
