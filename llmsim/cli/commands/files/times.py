"""`llmsim times`: operator times from elsewhere, imported and looked at."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError
from llmsim.plurals import counted

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest

IMPORT_HELP = (
    "Convert the output of an external simulator into a cost table for --cost-table "
    "(docs/how-to/external_simulators.md)."
)
SHOW_HELP = "Print the compiled cost tables of a model on a device, with the source of each."
FORMATS = ("contract", "columns", "scale-sim")


Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="<path>",
        parser=given_path,
        help="Writes the cost table (.csv).",
    ),
]
Form = Annotated[
    str, typer.Option("--format", help="Sets the input format: contract, columns or scale-sim.")
]
Device = Annotated[
    str, typer.Option("--device", help="Sets the name of the hardware in the cluster file.")
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="Maps a column of the contract to a column of the input, as OURS=THEIRS; repeatable.",
    ),
]
Constant = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Sets a column of the contract to one value in all rows, as OURS=VALUE; repeatable.",
    ),
]
Topology = Annotated[
    Path | None, typer.Option("--topology", help="Names SCALE-Sim's GEMM topology file (CSV).")
]
ClockGhz = Annotated[
    float,
    typer.Option(
        "--clock-ghz", help="Sets the clock, in GHz, of latencies that are given in cycles."
    ),
]


def import_table(
    files: Annotated[list[Path], typer.Argument(help="Names the tables to read.")],
    output: Output,
    form: Form = "contract",
    device: Device = "",
    column: Column = None,
    constant: Constant = None,
    topology: Topology = None,
    clock_ghz: ClockGhz = 0.0,
) -> int:
    """Reads, checks, writes one table; returns the exit code."""
    from llmsim.costs.sources.external.importers import by_columns, from_scale_sim, write_table
    from llmsim.costs.sources.external.table import read_external

    if form not in FORMATS:
        raise InputError(f'--format is "{form}"; it may be {", ".join(FORMATS)}')
    if output.suffix != ".csv":
        raise InputError(f'--output is "{output}"; a cost table is written as .csv')
    constants = {**({"device": device} if device else {}), **_pairs("--set", constant)}
    columns = _pairs("--column", column)
    if form == "scale-sim":
        if topology is None or len(files) != 1:
            raise InputError("--format scale-sim takes one COMPUTE_REPORT.csv and its --topology")
        tables = [from_scale_sim(files[0], topology, device, clock_ghz * 1e9, constants)]
    elif form == "columns":
        tables = [by_columns(path, columns, constants, clock_ghz * 1e9) for path in files]
    else:
        tables = [read_external(path) for path in files]
    written = write_table(tables, output)
    typer.echo(f"{output}: {counted(written, 'row')}; use it with --cost-table {output}")
    return 0


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise InputError(f'{option} "{text}": write NAME=VALUE')
        pairs[name] = value
    return pairs


def show(
    model: Annotated[
        str, typer.Argument(help="Names a bundled model, or the path of a config.json.")
    ],
    hardware: Annotated[str, typer.Argument(help="Names a device, or the path of its data sheet.")],
    tp: Annotated[int, typer.Option("--tp", help="Sets the tensor-parallel devices.")] = 1,
    ep: Annotated[int, typer.Option("--ep", help="Sets the expert-parallel devices.")] = 1,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            help="Chooses the source of operator times: auto, bundle, external, silicon or "
            "roofline.",
        ),
    ] = "auto",
    cost_table: Annotated[
        list[Path] | None,
        typer.Option(
            "--cost-table", help="Reads a cost table of an external simulator; repeatable."
        ),
    ] = None,
    profile_dir: Annotated[
        list[Path] | None,
        typer.Option("--profile-dir", help="Searches a folder of profile bundles; repeatable."),
    ] = None,
) -> int:
    """Compiles and prints; returns the exit code."""
    from llmsim.costs.compile import compile_costs
    from llmsim.costs.explain import explain

    if source not in ("auto", "bundle", "external", "silicon", "roofline"):
        raise InputError(
            f'--source is "{source}"; it may be auto, bundle, external, silicon or roofline'
        )
    request = replace(
        _of_default_engine(model, hardware, tp, ep),
        source=source,
        cost_tables=tuple(cost_table or ()),
        profile_dirs=tuple(profile_dir or ()),
    )
    typer.echo(explain(compile_costs(request)))
    return 0


def _of_default_engine(model: str, hardware: str, tp: int, ep: int) -> "CostRequest":
    """What is asked for a model on a device, with limits as engines have them by default."""
    from llmsim.config.engine.profile import DEFAULT_PROFILE
    from llmsim.costs.experts.load_sampling import Placement
    from llmsim.costs.source import CostRequest
    from llmsim.lowering.group import engine_versions
    from llmsim.model import Layout, load_hardware, load_model, operators, resolve_dtypes

    config, layout = load_model(model), Layout(tp, ep)
    dtypes = resolve_dtypes(config)
    return CostRequest(
        model=config,
        layout=layout,
        dtypes=dtypes,
        hardware_name=hardware,
        hardware=load_hardware(hardware),
        group_memory_bandwidth_bytes_per_s=0,
        operators=operators(config, layout, dtypes),
        max_tokens=8192,
        max_seqs=1024,
        max_model_len=config.max_position_embeddings,
        cuda_graph_sizes=(512,),
        expert_placement=Placement(ep),
        engine=engine_versions(DEFAULT_PROFILE),
    )
