"""Models whose layers all keep a state: no attention in the program, no KV, a block a sequence."""

import json

import pytest

from llmsim import Cluster, run
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.lowering import LoweringOptions, lower
from llmsim.lowering.types import LoweredGroup
from llmsim.model import Layout, layout_problem, load_model, state_bytes_per_sequence
from llmsim.model.types import Dtypes
from tests.lowering.clusters import cluster

CODESTRAL, FALCON = "mistralai/Mamba-Codestral-7B-v0.1", "tiiuae/falcon-mamba-7b"


def lowered(model: str, tp: int, **more: object) -> LoweredGroup:
    memory = {"mem_size": 80, "mem_bw": 3352, "mem_latency": 0}
    document = cluster(model, num_npus=tp, tp_size=tp, hardware="H100", npu_mem=memory, **more)
    deployment = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    return lower(deployment, LoweringOptions()).groups[0]


def test_the_state_of_a_sequence() -> None:
    # 128 heads of 64 x 128, and the last three of 8192 + 2 x 8 x 128 inputs, in 16 bits.
    layer = 128 * 64 * 128 * 2 + 3 * (8192 + 2048) * 2
    model = load_model(CODESTRAL)
    assert state_bytes_per_sequence(model, Layout(), Dtypes()) == 64 * layer
    assert state_bytes_per_sequence(model, Layout(2), Dtypes()) == 64 * layer // 2


@pytest.mark.parametrize(("model", "tp"), [(CODESTRAL, 1), (CODESTRAL, 4), (FALCON, 2)])
def test_blocks_are_sequences(model: str, tp: int) -> None:
    group = lowered(model, tp, max_num_seqs=48, num_gpu_blocks_override=None)
    state = state_bytes_per_sequence(load_model(model), Layout(tp), Dtypes())
    assert group.ledger.block_bytes == state
    left = sum(size for label, size in group.ledger.lines if not label.startswith(("KV", "unused")))
    assert group.ledger.num_blocks == left // state
    assert not any("linear-attention state" in label for label, _ in group.ledger.lines)
    assert "no_attention" not in {cost.name for cost in group.program_costs if cost.repeat}


def test_ranks_need_whole_heads() -> None:
    assert "128 heads" in layout_problem(load_model(CODESTRAL), Layout(256))
    assert layout_problem(load_model(FALCON), Layout(16)) == ""


def test_a_long_context_costs_a_decode_nothing() -> None:
    """Each step reads one state, however long the sequence is."""
    built = Cluster.build(CODESTRAL, "H100")
    load = "synthetic:n=2,rate=0.01,input={},output=100,seed=1"
    short, long = (run(built, load.format(tokens)) for tokens in (100, 1500))
    tpot = [(one.requests["e2el_ps"] - one.requests["ttft_ps"]).mean() for one in (short, long)]
    assert tpot[1] == pytest.approx(tpot[0], rel=0.02)
    assert short.requests.shape[0] == 2


def test_more_sequences_than_states_wait() -> None:
    """With room for three sequences and the null block, a fourth waits for one to end."""
    built = Cluster.build(CODESTRAL, "H100")
    load = "synthetic:n=12,rate=1000,input=100,output=50,seed=1"
    few, many = (run(built, load, num_gpu_blocks_override=blocks) for blocks in (4, 64))
    assert few.requests.shape[0] == many.requests.shape[0] == 12
    assert few.requests["queueing_ps"].max() > 5 * many.requests["queueing_ps"].max()
