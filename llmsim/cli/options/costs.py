"""Options of `llmsim run`: what steps and transfers cost, and on which network."""

from pathlib import Path
from typing import Annotated

from llmsim.cli.options.panel import option, path_option

PANEL = "Costs and network"

KvTransfer = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-transfer",
        text="Between pd_type prefill and decode: whole (prompts) or layerwise; whole if not given.",
    ),
]
KvTransferMode = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-transfer-mode",
        text="pull (decode reads when the prefill has ended) or push (decode reserves first); layerwise is push.",
    ),
]
ExpertRouting = Annotated[
    str,
    option(
        PANEL,
        "--expert-routing-policy",
        text="Loads of experts: BALANCED, RR, RAND, ZIPF:s=1, POWER_LAW:alpha=1.2, TRACE:file or module:Class.",
        default=True,
    ),
]
ProfileDir = Annotated[
    list[Path] | None,
    option(
        PANEL,
        "--profile-dir",
        text="Folder of profile bundles <hardware>/<model>/<variant>/tp<N>/; repeatable.",
        metavar="<path>",
    ),
]
CostSource = Annotated[
    str,
    option(
        PANEL,
        "--cost-source",
        text="auto, bundle, external, silicon or roofline; module:Class; blackbox:FILE.json.",
        default=True,
    ),
]
CostTable = Annotated[
    list[Path] | None,
    option(
        PANEL,
        "--cost-table",
        text="Table of an external simulator (docs/external_simulators.md); repeatable.",
        metavar="<path>",
    ),
]
Require = Annotated[
    str | None,
    option(PANEL, "--require", text="measured, interpolated, extrapolated or scaled: refuse times known less well."),
]
Collectives = Annotated[str, option(PANEL, "--collective-costs", text="auto, measured or links.", default=True)]
Network = Annotated[
    str,
    option(
        PANEL,
        "--network-backend",
        text="congestion-unaware, congestion-aware, fair-share, or analytical: fair-share where the cluster file names "
        "a topology, else congestion-unaware.",
        default=True,
    ),
]
Exact = Annotated[
    bool, option(PANEL, "--exact", text="Evaluate every rank's nodes in the engine instead of the folded program.")
]
DisableTerm = Annotated[
    list[str] | None,
    option(
        PANEL,
        "--disable-term",
        text="Switch off a fidelity term (decode_skew, ...; docs/calibration.md); repeatable.",
        metavar="<str>",
    ),
]
Calibration = Annotated[
    Path | None, path_option(PANEL, "--calibration", text="Constants of one machine, written by `llmsim calibrate`.")
]
