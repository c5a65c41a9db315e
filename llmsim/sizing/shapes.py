"""The layouts that a model could have on a device, and the plans that are made of them."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from llmsim.config.engine.scheduler_kinds import SGLANG
from llmsim.config.errors import LlmsimError
from llmsim.sizing.plan import Option, Plan, Pool, Shape

ARCHITECTURES = ("colocated", "pd")
"""What is tried where nothing is asked for."""
AFD = "afd"
KNOWN = (*ARCHITECTURES, AFD)
BUDGETS: tuple[tuple[Option, ...], ...] = ((), (("max_num_batched_tokens", 2048),))
"""Engine options that are tried: the profile's, and a smaller budget of tokens for each step, which
trades TTFT for TPOT.
"""
WIDE: tuple[tuple[Option, ...], ...] = ((("all2all_backend", "deepep_high_throughput"),),)
"""Options of vLLM that are tried, too, where data-parallel ranks spread experts over whole nodes:
rows go to the ranks of their experts, in place of all rows to all ranks.
"""
STAGES = (1, 2)
MOST_NODES = 16
"""Nodes of an instance at most."""
NODES_OF_ROLES = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4))
"""Nodes of attention and of FFN that run layers together, as far as they are tried unasked."""


def shapes(model: str, devices_per_node: int, stages: tuple[int, ...] = STAGES) -> Iterator[Shape]:
    """Every layout of powers of two that fits one node; of experts also those with whole ones."""
    from llmsim.model import load_model

    experts = load_model(model).num_experts
    tp = 1
    while tp <= devices_per_node:
        for pp in stages:
            if tp * pp > devices_per_node:
                continue
            yield Shape(tp, pp)
            if experts and tp > 1:
                yield Shape(tp, pp, ep=tp)
        if experts and tp > 1:
            yield Shape(tp, ep=tp, dp=tp)
            if tp > 2:
                yield Shape(tp, ep=tp, dp=tp // 2)
        tp *= 2


def shapes_over_nodes(model: str, devices_per_node: int, nodes: int) -> Iterator[Shape]:
    """The layouts that engines run over so many nodes, with as many devices of each as the largest
    layout of one node has.

    Stages are whole nodes, or tensor-parallel ranks are on all nodes. Whole experts are spread over
    all nodes, whose attention is tensor-parallel, or data-parallel between nodes or devices.
    """
    from llmsim.model import load_model

    each = 1 << (devices_per_node.bit_length() - 1)
    every = each * nodes
    yield Shape(each, nodes, nodes=nodes)
    yield Shape(every, nodes=nodes)
    if load_model(model).num_experts:
        if each > 1:
            yield Shape(each, nodes, ep=each, nodes=nodes)
        yield Shape(every, ep=every, nodes=nodes)
        for ranks in sorted({nodes, every}):
            yield Shape(every, ep=every, dp=ranks, nodes=nodes)


def afd_shapes(
    model: str,
    devices_per_node: int,
    attentions: Sequence[int] = (1,),
    ffns: Sequence[int] = (1,),
    lanes: Sequence[int] = (0,),
) -> Iterator[Shape]:
    """Attention and FFN apart: instances of powers of two devices of one node, so many of each,
    whose batches have so many lanes.

    Attention is tensor- or data-parallel; whole experts are on FFN devices, or FFNs are cut over
    them. What one node cannot hold has attention and FFN on nodes of their own; tensor-parallel
    attention also shares its rows out there, so that each crosses the network cards once.
    """
    from llmsim.model import load_model

    experts = load_model(model).num_experts
    sizes = [1 << i for i in range(devices_per_node.bit_length())]
    for attention, ffn in itertools.product(sizes, sizes):
        for many, others, cut in itertools.product(attentions, ffns, lanes):
            shape = Shape(attention, 1, ffn if experts else 1, 1, ffn, many, others, lanes=cut)
            yield shape
            if attention > 1:
                yield replace(shape, dp=attention)
                if shape.devices > devices_per_node:
                    yield replace(shape, sequence_parallel=True)


def afd_over_nodes(model: str, devices_per_node: int) -> Iterator[Shape]:
    """Attention and FFN on whole nodes of their own, as many as NODES_OF_ROLES."""
    for attentions, ffns in NODES_OF_ROLES:
        for shape in afd_shapes(model, devices_per_node, (attentions,), (ffns,)):
            whole = shape.tp == shape.ffn == devices_per_node
            if whole and (shape.dp > 1 or shape.sequence_parallel):
                yield shape


def units(
    model: str,
    device: str,
    architecture: str,
    devices_per_node: int,
    server: tuple[Option, ...] = (),
) -> Iterator[tuple[Plan, str]]:
    """Plans of one instance, or of one prefill and one decode instance, with the metric role that
    they are measured for: `both`, `prefill` or `decode`; `server` says which engine they run.

    Under `afd` the decode instances have attention and FFN apart, or such instances do both. An
    instance of one role has as partner the smallest one of the other role that fits the memory.
    Instances over several nodes come last.
    """
    if architecture == AFD:
        yield from _afd_units(model, device, devices_per_node, server)
        return

    def plan(*pools: Pool, engine: tuple[Option, ...] = ()) -> Plan:
        return Plan(model, device, pools, engine, devices_per_node, server)

    inside = list(shapes(model, devices_per_node))
    over = _over_as_many_nodes_as_fit(plan, devices_per_node, inside)
    for shape in (*inside, *over):
        for engine in _options(shape, devices_per_node, server):
            if architecture == "colocated":
                one = plan(Pool(shape, 1), engine=engine)
                if not _is_default(one):
                    yield one, "both"
            elif not engine and _may_have_role(shape, devices_per_node):
                pair = plan(Pool(shape, 1, "prefill"), Pool(shape, 1, "decode"))
                yield pair, "prefill"
                yield pair, "decode"


def _may_have_role(shape: Shape, devices_per_node: int) -> bool:
    """Whether prefill or decode instances are tried with a layout: not pipelines, and data-parallel
    ranks only if they have a node to themselves. A run takes seconds where their rows meet KV: of
    the other role on the node's switch, or on the network cards between nodes.
    """
    return shape.pp == 1 and (shape.dp == 1 or _has_a_node(shape, devices_per_node))


def _has_a_node(shape: Shape, devices_per_node: int) -> bool:
    """Whether an instance has one node, which has no room for another one of as many devices."""
    return shape.nodes == 1 and shape.devices * 2 > devices_per_node


def _is_default(plan: Plan) -> bool:
    """Whether the plan's budget of tokens is what its engine takes unasked, as on small devices."""
    if not any(option in plan.engine for options in BUDGETS for option in options):
        return False
    try:
        engines = [one.deployment().groups[0].engine for one in (plan, replace(plan, engine=()))]
    except LlmsimError:  # its own run says what is wrong
        return False
    asked, unasked = (engine.max_num_batched_tokens for engine in engines)
    return asked == unasked


def _options(
    shape: Shape, devices_per_node: int, server: tuple[Option, ...]
) -> tuple[tuple[Option, ...], ...]:
    """The engine options that are tried with a layout."""
    is_wide = shape.dp > 1 and shape.devices * 2 > devices_per_node
    return (*BUDGETS, *WIDE) if is_wide and ("scheduler", SGLANG) not in server else BUDGETS


def _over_as_many_nodes_as_fit(
    plan: Callable[[Pool], Plan], devices_per_node: int, inside: Sequence[Shape]
) -> Iterator[Shape]:
    """Layouts over the fewest nodes that hold the model, at least two, and over twice as many."""
    from llmsim.lowering import LoweringOptions
    from llmsim.sizing.bounds import fits

    model, options = plan(Pool(inside[0], 1)).model, LoweringOptions()
    nodes, left = 2, 2
    while nodes <= MOST_NODES and left:
        found = list(shapes_over_nodes(model, devices_per_node, nodes))
        if left < 2 or any(fits(plan(Pool(shape, 1)), options) for shape in found):
            left -= 1
        yield from found
        nodes *= 2


def _afd_units(
    model: str, device: str, devices_per_node: int, server: tuple[Option, ...]
) -> Iterator[tuple[Plan, str]]:
    whole = [one for one in shapes(model, devices_per_node, (1,)) if one.dp == 1]
    inside = [one for one in afd_shapes(model, devices_per_node) if one.devices <= devices_per_node]
    apart = [*inside, *afd_over_nodes(model, devices_per_node)]

    def plan(*pools: Pool) -> Plan:
        return Plan(model, device, pools, (), devices_per_node, server)

    for shape in apart:
        yield plan(Pool(shape, 1)), "both"
    decodes = Pool(_smallest([plan(Pool(shape, 1)) for shape in apart]), 1, "decode")
    for shape in whole:
        yield plan(Pool(shape, 1, "prefill"), decodes), "prefill"
    prefills = Pool(_smallest([plan(Pool(shape, 1)) for shape in whole]), 1, "prefill")
    for shape in apart:
        yield plan(prefills, Pool(shape, 1, "decode")), "decode"


def _smallest(plans: list[Plan]) -> Shape:
    """The layout of the plan with the fewest devices that fits the memory; without any, of the
    first one.
    """
    from llmsim.lowering import LoweringOptions
    from llmsim.sizing.bounds import fits

    options = LoweringOptions()
    for plan in sorted(plans, key=lambda one: one.devices):
        if fits(plan, options):
            return plan.pools[0].shape
    return plans[0].pools[0].shape
