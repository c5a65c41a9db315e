"""`llmsim topology`: the bundled networks, and networks as files that the command `astra-sim`
reads.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.run.command_line import given_path

LIST_HELP = "List the bundled networks."
EXPORT_HELP = "Write a network as a list of its links, for `astra-sim --network-configuration`."

Source = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="Names a bundled network, or a topology file.")
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
        print(f"{name}: {spec.name}, {spec.num_devices()} devices. {spec.source}")


def export(source: Source, output: Output = None) -> None:
    """Raises InputError for what is no network, and where the file cannot be written."""
    from llmsim.config.topology.file import load_topology
    from llmsim.export.files import atomic_writer, check_writable

    text = json.dumps(load_topology(source).as_file(), indent=1) + "\n"
    if output is None:
        print(text, end="")
        return
    check_writable(output)
    with atomic_writer(output) as stream:
        stream.write(text)
