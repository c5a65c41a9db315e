"""Options of `llmsim run`: what a run writes and says."""

from pathlib import Path
from typing import Annotated

from llmsim.cli.options.panel import option, path_option

PANEL = "Output"

Output = Annotated[Path | None, path_option(PANEL, "--output", text="CSV with one row per request, ns.")]
RunDir = Annotated[
    Path | None, path_option(PANEL, "--run-dir", text="Folder for manifest, summary and Parquet tables.")
]
Timeline = Annotated[
    Path | None, path_option(PANEL, "--timeline", text="Trace file for ui.perfetto.dev: steps, requests, counters.")
]
Json = Annotated[bool, option(PANEL, "--json", text="One JSON object on stdout instead of the text.")]
InputFiles = Annotated[
    Path | None,
    path_option(PANEL, "--input-files", text="JSON file with every file that the run read, and its SHA-256."),
]
LogInterval = Annotated[
    float, option(PANEL, "--log-interval", text="Simulated seconds between rows of the series.", default=True)
]
LogLevel = Annotated[
    str, option(PANEL, "--log-level", text="WARNING, or INFO or DEBUG (heartbeat lines).", default=True)
]
CheckEveryStep = Annotated[
    bool, option(PANEL, "--check-every-step", text="Recount the KV blocks of all tiers at every step (slow).")
]
Goodput = Annotated[
    list[str] | None,
    option(
        PANEL,
        "--goodput",
        text="Count the requests that meet ms of ttft, tpot or e2el, as ttft:1000,tpot:40 (vLLM's option).",
        metavar="<str>",
    ),
]
