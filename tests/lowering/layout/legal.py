"""Every legal layout of up to 16 devices, what makes two of them alike, and the keys of an instance
that has one.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import iteration_graph
from llmsim.lowering.parallel_layout import layout_of
from llmsim.model import Layout, ModelConfig, layout_problem
from llmsim.model.parallel.expert_parallel import BACKENDS
from llmsim.model.parallel.transforms import split_layers
from llmsim.rounds import round_of
from llmsim.routing import parse_router
from llmsim.simulation.options import SimulationOptions
from llmsim.workload import load_dataset
from tests.engine.command import run_case

from ..clusters import check_folded_is_expanded, cluster, deployed, lowered

SHAPES: dict[str, dict[str, Any]] = {
    "dense": {"kv_heads": 8, "layers": 6},
    "grouped": {"kv_heads": 2, "layers": 5},
    "thirds": {"heads": 12, "kv_heads": 3, "layers": 7, "width": 1536},
    "experts": {"experts": 16, "kv_heads": 8, "layers": 4, "dense_first": 1},
    "twelve": {"experts": 12, "heads": 12, "kv_heads": 4, "layers": 3},
    "latent": {"experts": 16, "latent": True, "shared": 1, "dense_first": 1, "layers": 4},
    "windows": {"kv_heads": 4, "layers": 5, "window": 64},
    "linear": {"experts": 8, "kv_heads": 2, "layers": 4, "linear": True, "shared": 1},
    "mixed": {"experts": 8, "kv_heads": 2, "pattern": "ME*-EM", "shared": 1},
    "sparse": {"experts": 8, "latent": True, "layers": 3, "chosen": 32},
}
"""Models: dense, fewer KV heads than ranks, in thirds, experts, latent attention, layers with a
window or a state, and layers that are a state space, attention, an MLP or experts in a latent space
alone; sparse attention.
"""
ROUTING = ("BALANCED", "RAND", "ZIPF:s=1.2")
TRACE = "synthetic:n=6,rate=2000,input=lognormal:80,output=lognormal:5,seed={seed}"
DRAFTS = {"method": "mtp", "num_speculative_tokens": 2, "acceptance_rate": 0.7}
"""A drafter like the model's last layer."""
DEVICES = 16
SIZES = tuple(range(1, DEVICES + 1))
CONTEXT = (1, 2, 4, 8)

Key = tuple[Any, ...]


def legal(config: ModelConfig) -> Iterator[Layout]:
    """Every layout of at most DEVICES devices that the rules allow, the smallest numbers first."""
    for tp, pp, dp, pcp in product(SIZES, repeat=4):
        if tp * pp * dp * pcp > DEVICES or pp > config.num_layers:
            continue
        if pcp > 1 and dp > 1:
            continue  # refused by name: experts that data-parallel ranks share
        stages = split_layers(config.num_layers, pp) if pp > 1 else ()
        experts = SIZES if config.num_experts else (1,)
        backends = BACKENDS if dp > 1 and config.num_experts else BACKENDS[:1]
        for ep, dcp, sequence, shared, exchange in product(
            experts, CONTEXT, (False, True), (False, True), backends
        ):
            if sequence and tp == 1:
                continue  # changes nothing
            if dp > 1 and not (config.num_experts or shared):
                continue  # replicas of their own
            if (dp == 1 and shared) or (dp > 1 and shared != (ep == 1)):
                continue  # no keys lead there
            layout = Layout(
                tp,
                ep,
                dp,
                stages,
                sequence_parallel=sequence,
                prefill_context=pcp,
                decode_context=dcp,
                exchange=exchange,
                shared_ffn=shared,
            )
            if not layout_problem(config, layout):
                yield layout


def structure(config: ModelConfig, layout: Layout) -> Key:
    """What decides which operators and collectives there are, and among whom; numbers alone differ
    beyond it.
    """
    ranks = layout.expert_ranks
    return (
        "one" if layout.tp == 1 else "copies" if layout.tp > config.num_key_value_heads else "cut",
        "one" if layout.pp == 1 else "even" if len(set(layout.stage_layers)) == 1 else "uneven",
        layout.dp > 1,
        layout.prefill_context > 1,
        layout.decode_context > 1,
        "none" if layout.ep == 1 else "all" if layout.ep == ranks else "some",
        layout.sequence_parallel,
        layout.shared_ffn,
        layout.exchange,
    )


def instance(config: ModelConfig, layout: Layout) -> tuple[int, dict[str, Any]]:
    """(members of the group, keys of one instance) that lead to the layout."""
    devices = layout.tp * layout.prefill_context * layout.pp
    keys: dict[str, Any] = {"num_npus": devices, "tp_size": layout.tp}
    if layout.pp > 1:
        keys["pp_size"] = layout.pp
    if layout.prefill_context > 1:
        keys["prefill_context_parallel_size"] = layout.prefill_context
    if layout.decode_context > 1:
        keys["decode_context_parallel_size"] = layout.decode_context
    if layout.sequence_parallel:
        keys["enable_sequence_parallelism"] = True
    if layout.dp > 1 and config.num_experts:
        keys["all2all_backend"] = layout.exchange
    if layout.ep % layout.dp:  # attention and FFN laid out apart: one instance is all ranks
        del keys["tp_size"]
        ffn = {"ffn_tp_size": layout.tp * layout.dp // layout.ep, "ffn_ep_size": layout.ep}
        attention = {"attn_tp_size": layout.tp, "attn_dp_size": layout.dp}
        return 1, {**keys, **attention, **ffn, "num_npus": devices * layout.dp}
    if config.num_experts:
        keys["ep_size"] = layout.ep
    if layout.dp > 1:
        keys["dp_group"] = "a"
    return layout.dp, keys


def representatives(config: ModelConfig) -> list[Layout]:
    """The smallest layout of each structure."""
    found: dict[Key, Layout] = {}
    for layout in legal(config):
        found.setdefault(structure(config, layout), layout)
    return list(found.values())


def check_graph(
    path: str,
    config: ModelConfig,
    layout: Layout,
    number: int,
    command: Path,
    folder: Path,
    **more: Any,
) -> None:
    """The engine takes as long for the traces of a step as the run, to the picosecond; `more` are
    keys of each instance.
    """
    members, keys = instance(config, layout)
    document = cluster(path, members=members, async_scheduling=False, **keys, **more)
    deployment = lowered(document)
    trace = f"synthetic:n=6,rate=100000,input=lognormal:80,output=5,seed={number % 10}"
    workload = load_dataset(
        trace, known_models=deployment.models, granularity=deployment.granularity
    )
    options = SimulationOptions(router=parse_router("RR"), record_steps=True)
    batch = round_of(deployment, workload, options, 0, number % 3)
    graph = iteration_graph(deployment.groups, 0, batch)
    write_chakra(graph, list(range(graph.ranks)), folder)
    found = run_case(command, folder, folder, rules="default")
    assert found.exit_code == 0, found.errors
    assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps


def check_layout(path: str, config: ModelConfig, layout: Layout, number: int) -> None:
    """The keys of the layout lead to it, and it runs folded as it runs expanded; `number` varies
    routing and load.
    """
    members, keys = instance(config, layout)
    document = cluster(path, members=members, **keys)
    assert layout_of(deployed(document).groups[0], config) == layout
    check_folded_is_expanded(
        document, trace=TRACE.format(seed=number % 10), experts=ROUTING[number % len(ROUTING)]
    )
