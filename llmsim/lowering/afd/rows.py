"""How many rows an FFN group may get at once, and what it has no operators for."""

from msgspec.structs import replace

from llmsim.config import EngineArgs, Group
from llmsim.costs import CompiledCosts, CostRequest
from llmsim.costs.sources.silicon.auxiliary_kernels import EXPERT_CHOICE
from llmsim.lowering.afd.layout import columns_of
from llmsim.lowering.overlap import most_tokens
from llmsim.model import Attention, Dtypes, Layout, ModelConfig, Operator, operators


def with_rows_of_all(group: Group, attention: EngineArgs, layout: Layout) -> Group:
    """An FFN group with the token budget of one of its columns: the largest batches of all
    attention groups, dealt evenly. Its steps have no host of their own between them, and it has as
    many batches in flight as they. `attention` is the engine of one of them, settled.
    """
    role = group.afd
    assert role is not None, "the caller looked"
    most = max(most_tokens(attention), *attention.cuda_graph_sizes, 1)
    columns = len(role.ffn) * columns_of(group, layout)
    rows = -(-most * len(role.attention) // columns)
    engine = replace(
        group.engine,
        max_num_batched_tokens=max(rows, *group.engine.cuda_graph_sizes, 1),
        max_num_seqs=attention.max_num_seqs,
        max_model_len=attention.max_model_len,
        scheduler=attention.scheduler,
        scheduler_parameters=attention.scheduler_parameters,
        async_scheduling=attention.async_scheduling,
        use_v2_model_runner=attention.use_v2_model_runner,
        pipeline_extra_batches=attention.pipeline_extra_batches,
        host_gap_ps=0,
        speculation=None,
    )
    return replace(group, engine=engine)


def unused_attention(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[Operator, ...]:
    """The attention operators of an FFN group's layout, which are priced and never run: a program
    has at least one.
    """
    if layout.domain != "ffn":
        return ()
    whole = operators(model, Layout(1), dtypes)
    return tuple(op for op in whole if isinstance(op, Attention))[:1]


BESIDE_EXPERTS = (EXPERT_CHOICE, "kernel_gap")
"""Costs of a source beside the operators that FFN groups have; the others belong to attention, or
to a step as a whole, and count there.
"""


def of_operators(costs: CompiledCosts, request: CostRequest) -> CompiledCosts:
    """The costs of an FFN group's operators, and what its sources add to them."""
    known = {*(op.name for op in request.operators), *BESIDE_EXPERTS}
    return replace(costs, ops=tuple(cost for cost in costs.ops if cost.name in known))
