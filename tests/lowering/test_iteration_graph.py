"""One iteration as traces: groups, weights and times of the kernels by hand, and layouts that
cannot be.
"""

import pytest

from llmsim.config.errors import InputError
from llmsim.costs.sources.roofline import (
    ATTENTION_EFFICIENCY,
    ATTENTION_LAUNCH_US,
    GEMM_EFFICIENCY,
    LAUNCH_US,
    MEMORY_EFFICIENCY,
)
from llmsim.export.chakra import TraceNode
from llmsim.export.step_graph.synthetic import MAX_RANKS, IterationGraph, Parallel, Step
from llmsim.model import Dtypes, ModelConfig, load_hardware, load_model

LLAMA, MOE = load_model("meta-llama/Llama-3.1-8B"), load_model("Qwen/Qwen3-30B-A3B")
H100 = load_hardware("H100")


def graph(model: ModelConfig, parallel: Parallel, step: Step | None = None) -> IterationGraph:
    return IterationGraph(model, H100, Dtypes(), parallel, step or Step(64, 4, 0))


def computed(
    model: ModelConfig, step: Step, name: str, parallel: Parallel | None = None
) -> TraceNode:
    """The first kernel of that name on rank 0."""
    nodes = graph(model, parallel or Parallel(), step).trace(0)
    return next(node for node in nodes if node.name.split(".")[-1] == name)


@pytest.mark.parametrize(
    "parallel",
    [
        Parallel(tp=2),
        Parallel(tp=2, dp=2),
        Parallel(tp=2, dp=2, ep=4),
        Parallel(dp=4, ep=2),
        Parallel(2, 2, 4, 8),
    ],
)
def test_every_rank_talks_in_groups_that_it_belongs_to(parallel: Parallel) -> None:
    """Those of TP have its size, those that exchange tokens the size of EP; each group is named by
    all its members.
    """
    found = graph(MOE, parallel)
    groups = found.groups()
    named: dict[int, set[int]] = {number: set() for number in groups}
    for rank in range(parallel.world):
        for node in found.trace(rank):
            if node.type == "COMM_COLL":
                number = int(node.attributes["pg_name"])
                exchanges = node.name.split(".")[-1] in ("dispatch", "combine")
                assert rank in groups[number]
                assert len(groups[number]) == (parallel.ep if exchanges else parallel.tp)
                named[number].add(rank)
    assert {number: sorted(ranks) for number, ranks in named.items()} == groups


def test_a_kernel_takes_the_longer_of_moving_and_computing() -> None:
    """One token moves its weights; eight thousand are bound by arithmetic."""
    rows, columns = (32 + 2 * 8) * 128, 4096
    for tokens, is_bound_by_memory in ((1, True), (8192, False)):
        node = computed(LLAMA, Step(tokens, 1, 0), "qkv_proj")
        moved = 2 * (rows * columns + tokens * (rows + columns))
        flops = 2 * tokens * rows * columns
        assert node.attributes["tensor_size"] == moved and node.attributes["num_ops"] == flops
        memory_us = 1e6 * moved / (MEMORY_EFFICIENCY * H100.memory_bandwidth_bytes_per_s)
        compute_us = 1e6 * flops / (GEMM_EFFICIENCY * H100.flops["bf16"])
        assert (memory_us > compute_us) == is_bound_by_memory
        expected_us = max(memory_us, compute_us) + LAUNCH_US
        assert int(node.attributes["duration_ps"]) == pytest.approx(expected_us * 1e6, abs=1)


def test_attention_takes_what_its_pairs_take() -> None:
    """Of a prompt alone half of the square and half of the diagonal."""
    node = computed(LLAMA, Step(8192, 1, 0), "attention")
    flops = 4 * 32 * 128 * (8192 * 8193 // 2)
    expected_us = 1e6 * flops / (ATTENTION_EFFICIENCY * H100.flops["bf16"]) + ATTENTION_LAUNCH_US
    assert node.attributes["num_ops"] == flops
    assert int(node.attributes["duration_ps"]) == pytest.approx(expected_us * 1e6, abs=1)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_of_a_stage_hand_on_a_share_each(tp: int) -> None:
    """Hidden states and residual of 64 tokens, to and from the rank of the same number; its peers
    gather the shares.
    """
    found = graph(LLAMA, Parallel(tp=tp, pp=2), Step(64, 4, 0))
    share = 2 * 64 * 4096 * 2 // tp
    [send] = [node for node in found.trace(tp - 1) if node.type == "COMM_SEND"]
    [receive] = [node for node in found.trace(2 * tp - 1) if node.type == "COMM_RECV"]
    assert (send.attributes["comm_dst"], receive.attributes["comm_src"]) == (2 * tp - 1, tp - 1)
    assert send.attributes["comm_size"] == receive.attributes["comm_size"] == share
    gathered = [node for node in found.trace(2 * tp - 1) if node.name == "activations_gather"]
    assert [node.attributes["comm_size"] for node in gathered] == [share] * (tp > 1)


def test_few_tokens_read_few_experts_on_one_rank() -> None:
    """A single token touches eight experts, whether or not its rank has others that
    take no part.
    """
    expert = 3 * MOE.hidden_size * MOE.moe_intermediate_size * 2
    alone = int(computed(MOE, Step(1, 1, 0), "moe").attributes["tensor_size"])
    assert 8 * expert <= alone < 8.1 * expert
    dense = computed(LLAMA, Step(1, 1, 0), "down_proj", Parallel(dp=2)).attributes["tensor_size"]
    assert dense == computed(LLAMA, Step(1, 1, 0), "down_proj").attributes["tensor_size"]


@pytest.mark.parametrize(
    ("parallel", "step", "sentence"),
    [
        (
            Parallel(dp=MAX_RANKS + 1),
            Step(64, 4, 0),
            "tp x pp x dp is 65537; 65536 ranks at most were expected",
        ),
        (
            Parallel(),
            Step(63, 4, 0, 2),
            "63 tokens in 4 sequences and 2 micro-batches do not come out even",
        ),
        (
            Parallel(),
            Step(3, 4, 0),
            "3 tokens in 4 sequences and 1 micro-batches do not come out even",
        ),
        (Parallel(), Step(0, 4, 0), "tokens is 0; 1 to 16777216 was expected"),
        (Parallel(), Step(4, 4, -1), "context is -1; 0 to 16777216 was expected"),
    ],
)
def test_what_cannot_be_is_one_sentence(parallel: Parallel, step: Step, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        graph(LLAMA, parallel, step)


def test_the_largest_layout_and_one_token_for_each_sequence_are_fine() -> None:
    assert graph(LLAMA, Parallel(dp=MAX_RANKS)).stage_of(MAX_RANKS - 1) == 0
    assert next(graph(LLAMA, Parallel(), Step(4, 4, 0)).trace(0)).name == "embedding"
