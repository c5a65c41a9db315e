"""Writes a starter cluster file for N identical instances of a model (`llmsim cluster`)."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from llmsim.api.cluster import Sizes, Starter, starter_fields
from llmsim.cli.run.command_line import given_path

HELP = (
    "Write a cluster file for N identical instances of a model on a device. Memory, bandwidth "
    "and links come from the device's data sheet. The file can be run as it is or edited "
    "(cluster_config/README.md)."
)

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
    int,
    typer.Option(
        "--tp",
        "--tensor-parallel-size",
        min=1,
        help="Sets the tensor-parallel devices of an instance.",
    ),
]
Pp = Annotated[
    int,
    typer.Option(
        "--pp", "--pipeline-parallel-size", min=1, help="Sets the pipeline stages of an instance."
    ),
]
Ep = Annotated[
    int | None,
    typer.Option(
        "--ep",
        "--expert-parallel-size",
        min=1,
        help="Sets the ranks over which whole experts are spread; 1 shards every expert over --tp "
        "ranks.",
        show_default="1",
    ),
]
WholeExperts = Annotated[
    bool,
    typer.Option(
        "--enable-expert-parallel",
        help="Spreads whole experts over all devices of --tp x --dp, as vLLM's option does.",
    ),
]
Dp = Annotated[
    int,
    typer.Option(
        "--dp",
        "--data-parallel-size",
        min=1,
        max=1 << 16,
        help="Sets the data-parallel ranks of an instance, which share its experts: cut over --tp "
        "x --dp devices, or whole with an --ep of as many. Copies that share nothing are "
        "--instances.",
    ),
]
Node = Annotated[
    int,
    typer.Option(
        "--devices-per-node",
        min=1,
        help="Sets the devices of a node; an instance of more devices is on several nodes.",
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
    enable_expert_parallel: WholeExperts = False,
    dp: Dp = 1,
    devices_per_node: Node = 8,
    output: Output = None,
) -> None:
    """Checks that the model exists and can be split so, and writes the file."""
    from llmsim.export.files import CLUSTER_ENDINGS, atomic_writer, check_ending, check_writable

    roles, sizes = [None] * instances, Sizes(tp, pp, ep, dp)
    starter = Starter(whole_experts=enable_expert_parallel)
    fields = starter_fields(model, hardware, roles, sizes, devices_per_node, starter)
    text = json.dumps(fields, indent=2) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    check_ending("--output", output, CLUSTER_ENDINGS)
    check_writable(output)
    with atomic_writer(output) as stream:
        stream.write(text)
    each = f"{instances} x {sizes.devices} {hardware}"
    typer.echo(f"{output}: {each}; the driver of a device reports a little less memory than")
    typer.echo("its data sheet says (mem_size, GiB): put there what yours reports")
