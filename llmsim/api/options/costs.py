"""Options of `llmsim run`: what steps and transfers cost, and on which network."""

from pathlib import Path
from typing import Annotated

from llmsim.api.options.option import option, path_option

PANEL = "Costs and network"

KvTransfer = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-transfer",
        text="Sets how KV moves from prefill to decode instances: whole (a prompt at once), "
        "chunked (with each step) or layerwise; whole if not given, chunked for SGLang.",
    ),
]
KvTransferMode = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-transfer-mode",
        text="Sets the side that starts a KV transfer: pull (the decode instance reads after the "
        "prefill) or push (the prefill instance writes into reserved blocks; chunked and "
        "layerwise imply push); pull if not given, push for SGLang.",
    ),
]
ExpertRouting = Annotated[
    str,
    option(
        PANEL,
        "--expert-routing-policy",
        text=(
            "Sets the loads of experts: UNIFORM, BALANCED, RR, RAND, ZIPF:s=1, "
            "POWER_LAW:alpha=1.2, TRACE:file or module:Class."
        ),
        default=True,
    ),
]
ProfileDir = Annotated[
    list[Path] | None,
    option(
        PANEL,
        "--profile-dir",
        text=(
            "Searches a folder of profile bundles, <hardware>/<model>/<variant>/tp<N>/; repeatable."
        ),
        metavar="<path>",
    ),
]
CostSource = Annotated[
    str,
    option(
        PANEL,
        "--cost-source",
        text="Chooses the source of operator times: auto, bundle, external, silicon, roofline, "
        "module:Class or blackbox:FILE.json.",
        default=True,
    ),
]
CostTable = Annotated[
    list[Path] | None,
    option(
        PANEL,
        "--cost-table",
        text=(
            "Reads a table of an external simulator (docs/how-to/external_simulators.md); "
            "repeatable."
        ),
        metavar="<path>",
    ),
]
Require = Annotated[
    str | None,
    option(
        PANEL,
        "--require",
        text=(
            "Refuses operator times of a lower provenance than this one: measured, interpolated, "
            "extrapolated or scaled."
        ),
    ),
]
Collectives = Annotated[
    str,
    option(
        PANEL,
        "--collective-costs",
        text="Chooses the source of collective times: auto, measured, links, or nccl (a model of "
        "NCCL and of vLLM's all-reduce).",
        default=True,
    ),
]
Network = Annotated[
    str,
    option(
        PANEL,
        "--network-backend",
        text="Chooses the network model: congestion-unaware, congestion-aware, fair-share, or "
        "analytical, which is fair-share where the cluster file names a topology, else "
        "congestion-unaware. strict and external:PATH have each step timed by ASTRA-sim.",
        default=True,
    ),
]
CollectiveContention = Annotated[
    str,
    option(
        PANEL,
        "--collective-contention",
        text="Sets whether collectives of groups that share links of a topology slow each other: "
        "on, or off, which times each group's collectives alone.",
        default=True,
    ),
]
Exact = Annotated[
    bool,
    option(
        PANEL,
        "--exact",
        text="Evaluates every rank's nodes in the engine instead of the folded program.",
    ),
]
DisableTerm = Annotated[
    list[str] | None,
    option(
        PANEL,
        "--disable-term",
        text=(
            "Switches off a fidelity term (decode_skew, ...; docs/how-to/calibration.md); "
            "repeatable."
        ),
        metavar="<str>",
    ),
]
Calibration = Annotated[
    Path | None,
    path_option(
        PANEL,
        "--calibration",
        text="Applies the constants of one machine, written by `llmsim calibrate`.",
    ),
]
