"""Writes an iteration's graph as Chakra execution traces, one per rank, with the files that ASTRA-sim wants beside.

Compute and measured collectives are COMP nodes whose duration is rounded to whole microseconds, Chakra's unit;
collectives that links price are COMM_COLL nodes with their bytes, so that the network of the simulator prices them.
"""

from __future__ import annotations

import json
from pathlib import Path

from llmsim.config import LinkSpec
from llmsim.export.chakra import COLLECTIVES, TraceNode, Value, write_trace
from llmsim.export.step_graph import PS_PER_US, GraphNode, IterationGraph


def rounded_us(node: GraphNode) -> int:
    """Whole microseconds, halves up."""
    return (node.duration_ps + PS_PER_US // 2) // PS_PER_US


def trace_of(graph: IterationGraph, rank: int) -> list[TraceNode]:
    """The nodes of one rank, numbered from 0."""
    nodes = graph.of_rank(rank)
    place = {node.node: index for index, node in enumerate(nodes)}
    trace = []
    for node in nodes:
        links = node.kind == "collective" and node.on_links
        attributes: dict[str, Value] = {"is_cpu_op": False}
        if links:
            attributes |= {"comm_type": COLLECTIVES.index(node.collective.upper()), "comm_size": node.bytes_moved}
            attributes |= {"involved_dim": (True,)}
        else:
            attributes |= {"num_ops": node.flops, "tensor_size": node.bytes_moved}
        trace.append(
            TraceNode(
                place[node.node], f"{node.name} {node.layer}", "COMM_COLL" if links else "COMP",
                0 if links else rounded_us(node), [place[before] for before in node.depends_on], [], attributes,
            )
        )  # fmt: skip
    return trace


def write_chakra(graph: IterationGraph, ranks: list[int], folder: Path, link: LinkSpec) -> list[Path]:
    """`workload.<rank>.et` for each rank, and system, network and memory files of the group; the paths.

    The network is the group's own full mesh; ring collectives, as the program prices them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank in ranks:
        written.append(folder / f"workload.{rank}.et")
        write_trace(written[-1], trace_of(graph, rank))
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system = {
        "scheduling-policy": "LIFO", "endpoint-delay": 0, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1, "collective-optimization": "baseline", "local-mem-bw": 1600,
        **{f"{kind}-implementation": ["ring"] for kind in kinds},
    }  # fmt: skip
    network = {
        "topology": ["FullyConnected"], "npus_count": [max(graph.ranks, 2)],
        "bandwidth": [link.bandwidth_bytes_per_s[0] / 1e9], "latency": [link.latency_ps[0] / 1000],
    }  # fmt: skip
    for name, text in (
        ("system.json", json.dumps(system, indent=2) + "\n"),
        ("network.yml", "".join(f"{key}: {json.dumps(value)}\n" for key, value in network.items())),
        ("memory.json", json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}) + "\n"),
    ):
        written.append(folder / name)
        written[-1].write_text(text)
    return written
