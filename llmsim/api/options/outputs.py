"""Options of `llmsim run`: what a run writes and says."""

from pathlib import Path
from typing import Annotated

from llmsim.api.options.option import option, path_option

PANEL = "Output"

Output = Annotated[
    Path | None,
    path_option(PANEL, "--output", text="Writes a CSV with one row per request; times are in ns."),
]
RunDir = Annotated[
    Path | None,
    path_option(
        PANEL, "--run-dir", text="Writes manifest, summary and Parquet tables into a folder."
    ),
]
Timeline = Annotated[
    Path | None,
    path_option(
        PANEL,
        "--timeline",
        text="Writes a trace file for ui.perfetto.dev with steps, requests and counters.",
    ),
]
Graphs = Annotated[
    str | None,
    option(
        PANEL,
        "--graphs",
        text="Writes graphs of steps and index.parquet into a folder: "
        "FOLDER[:every=N|slowest=K|request=ID|step=N[,group=N][,dummies=yes]"
        "[,format=json|et|dot|graphml]].",
    ),
]
Json = Annotated[
    bool, option(PANEL, "--json", text="Prints one JSON object on stdout instead of the text.")
]
Verbose = Annotated[
    bool,
    option(
        PANEL,
        "--verbose",
        "-v",
        text="Prints memory, options, all latencies, causes, sources and notes, not a headline.",
    ),
]
Quiet = Annotated[
    bool,
    option(PANEL, "--quiet", "-q", text="Prints no text and no progress; files and --json stay."),
]
InputFiles = Annotated[
    Path | None,
    path_option(
        PANEL,
        "--input-files",
        text="Writes a JSON file that lists every file that the run read, with its SHA-256.",
    ),
]
LogInterval = Annotated[
    float,
    option(
        PANEL,
        "--log-interval",
        text="Sets the simulated seconds between rows of the series.",
        default=True,
    ),
]
LogLevel = Annotated[
    str,
    option(
        PANEL,
        "--log-level",
        text="Sets the log level: WARNING, INFO or DEBUG; the last two print heartbeat lines.",
        default=True,
    ),
]
CheckEveryStep = Annotated[
    bool,
    option(
        PANEL,
        "--check-every-step",
        text="Recounts the KV blocks of all tiers at every step (slow).",
    ),
]
Goodput = Annotated[
    list[str] | None,
    option(
        PANEL,
        "--goodput",
        text=(
            "Counts the requests that meet limits in ms, such as ttft:1000,tpot:40,e2el:9000 "
            "(vLLM's option), by class as chat=ttft:300;batch=e2el:60000, or the sessions with "
            "attft."
        ),
        metavar="<str>",
    ),
]
