"""Writes a starter cluster file for N identical instances of a model (`llmsim cluster`)."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError

HELP = (
    "Write a cluster file for N identical instances of a model on a device. Memory, bandwidth "
    "and links come from the device's data sheet. The file can be run as it is or edited "
    "(cluster_config/README.md)."
)
LINK_LATENCY_NS, NODE_LINK_GB_PER_S, NODE_LATENCY_NS = 1000, 50, 2000
"""No data sheet states latencies: the assumptions of the bundled files, as is one card of 400 Gb/s
for each device.
"""

Model = Annotated[
    str,
    typer.Argument(help="Names a bundled model, or the path of a config.json.", show_default=False),
]
Device = Annotated[
    str, typer.Argument(help="Names a device, or the path of its data sheet.", show_default=False)
]
Count = Annotated[
    int, typer.Option("--instances", "-n", min=1, max=1 << 16, help="Sets the number of instances.")
]
Tp = Annotated[
    int, typer.Option("--tp", min=1, help="Sets the tensor-parallel devices of an instance.")
]
Pp = Annotated[int, typer.Option("--pp", min=1, help="Sets the pipeline stages of an instance.")]
Ep = Annotated[
    int | None,
    typer.Option(
        "--ep",
        min=1,
        help="Sets the ranks over which whole experts are spread; 1 shards every expert over --tp "
        "ranks.",
        show_default="1",
    ),
]
Node = Annotated[
    int,
    typer.Option(
        "--devices-per-node",
        min=1,
        help="Sets the devices of a node; an instance never spans two nodes.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Writes the cluster file; standard output if not given.",
        parser=given_path,
        metavar="<path>",
    ),
]


def command(
    model: Model,
    hardware: Device,
    instances: Count = 1,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = None,
    devices_per_node: Node = 8,
    output: Output = None,
) -> None:
    """Checks that the model exists and can be split so, and writes the file."""
    from llmsim.export.files import atomic_writer, check_writable

    needed = tp * pp
    if needed > devices_per_node:
        raise InputError(
            f"an instance of --tp {tp} x --pp {pp} needs {needed} devices, a node has "
            "--devices-per-node "
            f"{devices_per_node}; lower the first or raise the last"
        )
    text = (
        json.dumps(
            _cluster(model, hardware, instances, (tp, pp, ep), devices_per_node // needed), indent=2
        )
        + "\n"
    )
    if output is None:
        sys.stdout.write(text)
        return
    check_writable(output)
    with atomic_writer(output) as stream:
        stream.write(text)
    typer.echo(
        f"{output}: {instances} x {needed} {hardware}; the driver of a device reports a little "
        "less memory than"
    )
    typer.echo("its data sheet says (mem_size, GiB): put there what yours reports")


def _cluster(
    model: str, hardware: str, instances: int, sizes: tuple[int, int, int | None], per_node: int
) -> dict[str, Any]:
    from llmsim.model import Layout, load_model, operators, resolve_dtypes
    from llmsim.model.hardware import data_sheet

    tp, pp, ep = sizes
    sheet = data_sheet(hardware)
    shape = load_model(model)
    if ep is not None and not shape.num_experts:
        raise InputError(f"--ep is {ep}; {model} has no experts, leave the option out")
    operators(
        shape, Layout(tp, ep or 1), resolve_dtypes(shape)
    )  # says where the model cannot be split so
    if pp > shape.num_layers:
        raise InputError(f"--pp is {pp}; {model} has {shape.num_layers} layers for so many stages")
    instance: dict[str, Any] = {
        "model_name": _from_anywhere(model),
        "hardware": _from_anywhere(hardware),
        "npu_mem": {
            "mem_size": round(sheet.memory_bytes / (1 << 30), 3),
            "mem_bw": sheet.memory_bandwidth_bytes_per_s / 1e9,
        },
        "tp_size": tp,
        "pp_size": pp,
    }
    if shape.num_experts:
        instance["ep_size"] = ep or 1
    link = sheet.intra_node_link_bytes_per_s / 1e9
    nodes = [
        {"instances": [instance] * min(per_node, instances - i)}
        for i in range(0, instances, per_node)
    ]
    return {
        "description": f"{instances} x {model}, each on {tp * pp} {hardware}. Memory, bandwidth "
        "and links "
        "from the "
        "data sheet; latencies and the link between nodes are assumptions.",
        "link_bw": [link, link, NODE_LINK_GB_PER_S],
        "link_latency": [LINK_LATENCY_NS, LINK_LATENCY_NS, NODE_LATENCY_NS],
        "nodes": nodes,
    }


def _from_anywhere(name: str) -> str:
    """A path that holds wherever the cluster file is, which is where it looks first; a name as it
    is.
    """
    return (
        str(Path(name).resolve())
        if Path(name).is_file() or Path(name, "config.json").is_file()
        else name
    )
