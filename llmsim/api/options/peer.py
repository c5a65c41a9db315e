"""Options of `llmsim run` under the names of LLMServingSim."""

from pathlib import Path
from typing import Annotated

from llmsim.api.options.option import option, path_option

PANEL = "LLMServingSim"

Fp = Annotated[
    int | None,
    option(PANEL, "--fp", text="Sets the bits of an element: 16, 32 or 8; --dtype replaces it."),
]
PrioritizePrefill = Annotated[
    bool,
    option(
        PANEL, "--prioritize-prefill", text="Fills steps with prompts alone while any prompt waits."
    ),
]
LocalOffloading = Annotated[
    bool,
    option(
        PANEL,
        "--enable-local-offloading",
        text=(
            "Makes reads of weights take at least the latency and bandwidth of npu_mem "
            "(docs/explanation/memory.md)."
        ),
    ),
]
AttnOffloading = Annotated[
    bool,
    option(
        PANEL,
        "--enable-attn-offloading",
        text="Runs the attention of decodes in the node's memory (docs/explanation/pim.md).",
    ),
]
SubBatch = Annotated[
    bool,
    option(
        PANEL,
        "--enable-sub-batch-interleaving",
        text=(
            "Splits a batch into halves that alternate between device and memory "
            "(docs/explanation/pim.md)."
        ),
    ),
]
AttnPrediction = Annotated[
    bool,
    option(
        PANEL,
        "--enable-attn-prediction",
        text="Prices a bundle's attention by a regressor that is fitted on its rows.",
    ),
]
Gen = Annotated[
    bool, option(PANEL, "--gen", text="Enables --skip-prefill; this is its older name.")
]
SkipPrefill = Annotated[
    bool,
    option(
        PANEL,
        "--skip-prefill",
        text="Simulates decodes alone: requests arrive with the KV of their prompts.",
    ),
]
BlockCopy = Annotated[
    bool | None,
    option(
        PANEL,
        "--enable-block-copy/--no-enable-block-copy",
        text="Has no effect, because equal blocks are always priced once.",
    ),
]
RunId = Annotated[
    str | None,
    option(
        PANEL,
        "--run-id",
        text="Sets the text of {run_id} in the paths of outputs; run_<us>_<pid> if not given.",
    ),
]
InputsRoot = Annotated[
    Path | None,
    path_option(
        PANEL, "--inputs-root", text="Has no effect, because there are no intermediate files."
    ),
]
CleanupInputs = Annotated[
    bool | None,
    option(
        PANEL,
        "--cleanup-inputs/--no-cleanup-inputs",
        text="Has no effect, because there are no intermediate files.",
    ),
]
