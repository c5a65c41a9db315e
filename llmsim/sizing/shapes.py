"""The layouts that a model could have on a device, and the plans that are made of them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from llmsim.sizing.plan import Option, Plan, Pool, Shape

ARCHITECTURES = ("colocated", "pd")
"""What is tried where nothing is asked for."""
AFD = "afd"
KNOWN = (*ARCHITECTURES, AFD)
BUDGETS: tuple[tuple[Option, ...], ...] = ((), (("max_num_batched_tokens", 2048),))
"""Engine options that are tried: the profile's, and a smaller budget of tokens for each step, which
trades TTFT for TPOT.
"""
STAGES = (1, 2)
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

    Prefill and decode instances are tensor-parallel, with whole experts or cut ones: pipelines and
    data-parallel attention between two roles take seconds a run. Under `afd` the decode instances
    have attention and FFN apart, or such instances do both. An instance of one role has as partner
    the smallest one of the other role that fits the memory.
    """
    if architecture == AFD:
        yield from _afd_units(model, device, devices_per_node, server)
        return
    for shape in shapes(model, devices_per_node):
        for engine in BUDGETS:
            if architecture == "colocated":
                pools = (Pool(shape, 1),)
                yield Plan(model, device, pools, engine, devices_per_node, server), "both"
            elif not engine and shape.pp == shape.dp == 1:
                pair = (Pool(shape, 1, "prefill"), Pool(shape, 1, "decode"))
                plan = Plan(model, device, pair, engine, devices_per_node, server)
                yield plan, "prefill"
                yield plan, "decode"


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
