"""Bytes of a group from its operators and how often they ran."""

from typing import Any

import numpy as np
import pytest

from llmsim.model import Dtypes, Layout, load_model, operators, weight_bytes
from llmsim.power import Copied, traffic_table

MODEL = load_model("meta-llama/Llama-3.1-8B")
HIDDEN_BYTES, VOCAB_BYTES = 4096 * 2, 128256 * 2


def activity(tokens: dict[int, int], sequences: dict[int, int], kv_read: int = 0) -> dict[str, Any]:
    rows = [np.zeros(65, np.int64) for _ in range(3)]
    for table, counts in zip(rows, (tokens, sequences, {}), strict=True):
        for at, count in counts.items():
            table[at] = count
    moved = dict.fromkeys(("to_memory_bytes", "from_memory_bytes", "host_bytes", "drawn_bytes"), 0)
    counts = {
        "kv_read_tokens": kv_read,
        "sequences": 0,
        "scheduled_tokens": sum(n * c for n, c in tokens.items()),
    }
    return {"rows": tuple(rows), **counts, "offload": moved}


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_rings_send_what_their_definition_says(tp: int) -> None:
    table = traffic_table(operators(MODEL, Layout(tp), Dtypes()), tp)
    found = table.traffic(activity({8: 3}, {8: 3}))
    all_reduce = (2 * 32 + 1) * 2 * (tp - 1) * HIDDEN_BYTES * 8 * 3 if tp > 1 else 0
    gather = (tp - 1) * VOCAB_BYTES * 8 * 3
    assert found.link_bytes == all_reduce + gather


def test_a_step_reads_its_weights_and_kv_once_on_every_rank() -> None:
    tables = {tp: traffic_table(operators(MODEL, Layout(tp), Dtypes()), tp) for tp in (1, 2)}
    once, twice = (tables[1].traffic(activity({1: n}, {1: n})).memory_bytes for n in (1, 2))
    assert twice == 2 * once
    weights = (
        weight_bytes(MODEL, Layout(1), Dtypes()) - 128256 * 4096 * 2
    )  # rows of the embedding, not all of it
    assert weights < once < 1.001 * weights
    for table in tables.values():
        read = table.traffic(activity({1: 1}, {1: 1}, kv_read=1000)).memory_bytes
        assert read - table.traffic(activity({1: 1}, {1: 1})).memory_bytes == 1000 * 131072


def test_members_share_what_they_do_together() -> None:
    ops = operators(MODEL, Layout(2), Dtypes())
    alone = traffic_table(ops, 2).traffic(activity({8: 3}, {8: 3}))
    member = traffic_table(ops, 2, members=4).traffic(activity({8: 3}, {8: 3}))
    assert member == alone  # a dense model's members have no collective in common


def test_copies_count_by_step_and_by_tokens() -> None:
    by_tokens = np.arange(65, dtype=np.int64) * 7
    copies = [
        Copied("cpu", "", np.array([1000])),
        Copied("cpu", "tokens", by_tokens),
        Copied("cxl:0", "", np.array([10])),
    ]
    found = traffic_table((), 2, copies).traffic(activity({8: 3, 4: 1}, {}))
    assert found.host_bytes == 2 * (4 * 1000 + 3 * 56 + 28)
    assert found.pool_bytes == 2 * 4 * 10


@pytest.mark.parametrize(("nodes", "share"), [(1, 0), (2, 2 / 4), (4, 1)])
def test_rings_between_nodes_pass_the_cards(nodes: int, share: float) -> None:
    """Four ranks that share experts: a ring over them leaves each node once, and passes a card at
    both ends.
    """
    model = load_model("Qwen/Qwen3-30B-A3B")
    ops = operators(model, Layout(1, 4, dp=4), Dtypes())
    counts = activity({8: 3}, {8: 3})
    counts["rows"][2][32 % 65] = 3
    alone = traffic_table(ops, 1, members=4).traffic(counts)
    spread = traffic_table(ops, 1, members=4, nodes=nodes).traffic(counts)
    assert alone.link_bytes > 0 and alone.nic_bytes == 0
    assert spread.link_bytes == pytest.approx((1 - share) * alone.link_bytes)
    assert spread.nic_bytes == pytest.approx(2 * share * alone.link_bytes)
