"""`llmsim topology`: the bundled networks, and networks as files that the command `astra-sim`
reads.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.plurals import counted

if TYPE_CHECKING:
    from llmsim.api.busbw import BusRow

LIST_HELP = "List the bundled networks."
BUSBW_HELP = (
    "Print the table that nccl-tests prints (size, time, algbw, busbw) for a network, beside "
    "measured times where they fit its links."
)
EXPORT_HELP = "Write a network as a list of its links, for `astra-sim --network-configuration`."

Source = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="Names a bundled network, a topology file, or a cluster file that names its topology.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="<path>",
        parser=given_path,
        help="Writes the topology file; standard output if not given.",
    ),
]


def list_presets() -> None:
    """One line for each."""
    from llmsim.config.topology.file import load_topology, preset_names

    for name in preset_names():
        spec = load_topology(name)
        print(f"{name}: {spec.name}, {counted(spec.num_devices(), 'device')}. {spec.source}")


def export(source: Source, output: Output = None) -> None:
    """Raises InputError for what is no network, and where the file cannot be written."""
    from llmsim.config.topology.file import network_of
    from llmsim.export.files import atomic_writer, check_writable

    text = json.dumps(network_of(source).as_file(), indent=1) + "\n"
    if output is None:
        print(text, end="")
        return
    check_writable(output)
    with atomic_writer(output) as stream:
        stream.write(text)


Collective = Annotated[
    str,
    typer.Option(
        "--collective",
        help="Chooses the collective: all_reduce, all_gather, reduce_scatter, all_to_all, or "
        "vllm_all_reduce (in a CUDA graph).",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="<count or numbers>",
        help="Takes the first devices, such as 8, or those with numbers such as 0,1,4,5; all "
        "devices of the network if not given.",
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="<name>",
        help="Names the data sheet of the devices; the network's own `hardware` if not given.",
    ),
]
First = Annotated[
    str, typer.Option("--min-bytes", "-b", help="Sets the smallest size, such as 1K.")
]
Last = Annotated[str, typer.Option("--max-bytes", "-e", help="Sets the largest size, such as 1G.")]
Factor = Annotated[
    int, typer.Option("--factor", "-f", help="Multiplies the size from line to line.")
]
Plan = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="<name>",
        help="Forces plans whose names begin so, such as ring, tree or NVLS, as NCCL_ALGO does; "
        "the fastest of all if not given.",
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        metavar="<name>",
        help="Times the engine's messages by this algorithm, such as ring, direct or "
        "halvingDoubling; a run prices them so with --collective-costs links.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of a table.")]


def busbw(
    source: Source,
    collective: Collective = "all_reduce",
    devices: Devices = None,
    hardware: Hardware = None,
    first: First = "1K",
    last: Last = "1G",
    factor: Factor = 2,
    plan: Plan = None,
    algorithm: Algorithm = None,
    as_json: Json = False,
) -> None:
    """Raises InputError for what is no network, collective, device, size, plan or algorithm."""
    from llmsim.api import busbw as bandwidths

    asked = bandwidths.BusRequest(
        source, collective, devices, hardware, first, last, factor, plan, algorithm
    )
    table = bandwidths.bus_bandwidths(asked)
    if as_json:
        print(json.dumps(bandwidths.as_json(table), indent=1))
        return
    where = "one server" if table.servers == 1 else f"{table.servers} servers"
    print(f"# {table.collective}, {table.devices} devices on {where} of {table.topology}")
    print(f"# model: {table.model}")
    print(f"# measured: {table.measured or 'none fits'}")
    columns = ["size", "time", "algbw", "busbw"]
    units = ["(B)", "(us)", "(GB/s)", "(GB/s)"]
    if table.measured:
        columns += ["measured", "busbw"]
        units += ["(us)", "(GB/s)"]
    print("#" + "".join(f"{name:>13}" for name in columns)[1:] + "  plan")
    print("#" + "".join(f"{unit:>13}" for unit in units)[1:])
    for row in table.rows:
        print(_busbw_line(row, measured=table.measured is not None))


def _busbw_line(row: "BusRow", *, measured: bool) -> str:
    cells = [
        f"{row.size_bytes}",
        f"{row.time_us:.2f}",
        f"{row.algbw_gb_per_s:.2f}",
        f"{row.busbw_gb_per_s:.2f}",
    ]
    if measured:
        known = (row.measured_us, row.measured_busbw_gb_per_s)
        cells += ["-" if value is None else f"{value:.2f}" for value in known]
    return "".join(f"{cell:>13}" for cell in cells) + f"  {row.plan}"
