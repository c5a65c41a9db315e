"""`llmsim config explain`: every resolved value of a cluster file, and why."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from llmsim.cli.run.command_line import given_path

if TYPE_CHECKING:
    from llmsim.config.deployment import Group
    from llmsim.config.explain import Explained

HELP = (
    "Show every resolved value of a cluster file and where it comes from: a line of the file, the "
    "engine's profile, a data sheet, or a default."
)
WIDEST = 60

File = Annotated[
    Path,
    typer.Argument(
        help="Names the cluster file.", parser=given_path, metavar="FILE", show_default=False
    ),
]
Field = Annotated[
    str,
    typer.Option(
        "--field",
        help="Shows one value, or all below a path such as nodes[0].instances[0].",
        metavar="PATH",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON instead of a table.")]


def command(file: File, field: Field = "", as_json: AsJson = False) -> None:
    """Resolves and prints; raises InputError."""
    from llmsim.config import EngineOverrides, load_cluster, resolve
    from llmsim.config.explain import explain
    from llmsim.export.json import json_text
    from llmsim.lowering.device_memory import sheet_memory
    from llmsim.lowering.energy.prices import price_of_group
    from llmsim.lowering.group import settled_engines
    from llmsim.lowering.offload.host_memory import located
    from llmsim.model.hardware import load_hardware

    cluster = load_cluster(file)
    deployment = resolve(cluster, EngineOverrides(), sheet=sheet_memory(cluster.path))

    def price_of(group: "Group") -> tuple[float | None, str]:
        price = price_of_group(group, load_hardware(located(group.hardware, cluster.path)))
        return price.usd_per_device_hour, f"{price.basis}: {price.source}"

    found = explain(cluster, settled_engines(deployment), price_of, field)
    if as_json:
        sys.stdout.write(json_text({"fields": [asdict(one) for one in found]}))
        return
    shown = [(one.field, _short(one), one.why) for one in found]
    widths = [max(len(row[i]) for row in shown) for i in (0, 1)]
    for name, value, why in shown:
        print(f"{name:{widths[0]}}  {value:{widths[1]}}  {why}")


def _short(one: "Explained") -> str:
    text = json.dumps(one.value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
