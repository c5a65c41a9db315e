"""`llmsim graph`: transformer iterations as Chakra traces, with the files that `astra-sim` needs
beside them.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.export.network_file import network_file
from llmsim.plurals import counted, plural

if TYPE_CHECKING:
    from llmsim.model import Hardware

GENERATE_HELP = (
    "Write one step of a model as Chakra traces (PREFIX.<rank>.et), with a configuration to run"
    " them."
)

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Names a bundled model, or the path of a config.json."),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="<path>",
        parser=given_path,
        help="Writes the traces and the configuration into this folder, which is created.",
    ),
]
Device = Annotated[
    str,
    typer.Option("--hardware", help="Names the device whose data sheet gives the kernel times."),
]
Tp = Annotated[int, typer.Option("--tp", help="Sets the tensor-parallel ranks.")]
Pp = Annotated[int, typer.Option("--pp", help="Sets the pipeline stages.")]
Dp = Annotated[int, typer.Option("--dp", help="Sets the data-parallel replicas.")]
Ep = Annotated[
    int,
    typer.Option(
        "--ep", help="Sets the ranks that share the experts: a divisor or a multiple of --tp."
    ),
]
Tokens = Annotated[int, typer.Option("--tokens", help="Sets the new tokens of one replica.")]
Sequences = Annotated[
    int, typer.Option("--sequences", help="Sets the sequences to which the new tokens belong.")
]
Context = Annotated[int, typer.Option("--context", help="Sets the cached tokens of each sequence.")]
MicroBatches = Annotated[
    int,
    typer.Option(
        "--micro-batches", help="Sets the micro-batches that pass the pipeline stages in turn."
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", help="Sets the type of weights and activations; auto is the model's own."
    ),
]

NODE_LATENCY_NS, NETWORK_GB_PER_S, NETWORK_LATENCY_NS = (
    500,
    50,
    1000,
)  # between replicas and stages: 400 Gb/s


def generate(
    model: Model,
    output: Output,
    hardware: Device = "H100",
    tp: Tp = 1,
    pp: Pp = 1,
    dp: Dp = 1,
    ep: Ep = 1,
    tokens: Tokens = 256,
    sequences: Sequences = 8,
    context: Context = 1024,
    micro_batches: MicroBatches = 1,
    dtype: Dtype = "auto",
) -> None:
    """Raises InputError for a layout that the model cannot have, and where the folder cannot be
    written.
    """
    from llmsim.export.chakra import write_trace
    from llmsim.export.files import check_writable_folder
    from llmsim.export.step_graph.synthetic import IterationGraph, Parallel, Step
    from llmsim.model import load_model, resolve_dtypes
    from llmsim.model.hardware import data_sheet

    shape = load_model(model)
    sheet = data_sheet(hardware)
    parallel = Parallel(tp, pp, dp, ep)
    step = Step(tokens, sequences, context, micro_batches)
    graph = IterationGraph(shape, sheet, resolve_dtypes(shape, dtype), parallel, step)
    check_writable_folder(output)
    for name, text in _configuration(graph.groups(), parallel, sheet).items():
        (output / name).write_text(text, encoding="utf-8")
    for rank in range(parallel.world):
        write_trace(output / f"trace.{rank}.et", graph.trace(rank))
    network = "network.yml" if parallel.world > 1 else "network.json"
    print(
        f"{counted(parallel.world, 'trace')} in {output}; run "
        f"{plural(parallel.world, 'it', 'them')} with\n"
        f"astra-sim --workload-configuration={output}/trace "
        f"--system-configuration={output}/system.json "
        f"--network-configuration={output}/{network} "
        f"--remote-memory-configuration={output}/memory.json "
        f"--comm-group-configuration={output}/comm_group.json"
    )


def _configuration(
    groups: dict[int, list[int]], parallel: Any, sheet: "Hardware"
) -> dict[str, str]:
    """The files beside the traces, by name: a switch per TP group, and one between them; the
    device's own memory.
    """
    outer = parallel.dp * parallel.pp
    link = sheet.intra_node_link_bytes_per_s
    dimensions = [
        (parallel.tp, link, NODE_LATENCY_NS * 1000),
        (outer, NETWORK_GB_PER_S * 10**9, NETWORK_LATENCY_NS * 1000),
    ]
    used = [dimension for dimension in dimensions if dimension[0] > 1]
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system: dict[str, Any] = {
        f"{kind}-implementation": ["direct"] * max(1, len(used)) for kind in kinds
    }
    system |= {"preferred-dataset-splits": 1, "endpoint-delay": 0}
    system["local-mem-bw"] = sheet.memory_bandwidth_bytes_per_s / 1e9
    files = {
        "system.json": json.dumps(system, indent=1) + "\n",
        "memory.json": '{"memory-type": "NO_MEMORY_EXPANSION"}\n',
        "comm_group.json": json.dumps({str(number): ranks for number, ranks in groups.items()})
        + "\n",
    }
    if not used:
        one = [{"kind": "switch", "size": 1, "bandwidth_gb_per_s": 1}]
        return files | {"network.json": json.dumps({"dimensions": one}) + "\n"}
    return files | {"network.yml": network_file(used, "Switch")}
