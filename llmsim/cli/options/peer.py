"""Options of `llmsim run` under the names of LLMServingSim."""

from pathlib import Path
from typing import Annotated

from llmsim.cli.options.panel import option, path_option

PANEL = "LLMServingSim"

Fp = Annotated[int | None, option(PANEL, "--fp", text="Bits per element: 16, 32 or 8; the older form of --dtype.")]
PrioritizePrefill = Annotated[
    bool, option(PANEL, "--prioritize-prefill", text="A step is all prompts while there are any.")
]
LocalOffloading = Annotated[
    bool,
    option(
        PANEL,
        "--enable-local-offloading",
        text="Reads of weights take at least what npu_mem's latency and bandwidth say (docs/memory.md).",
    ),
]
AttnOffloading = Annotated[
    bool, option(PANEL, "--enable-attn-offloading", text="Decodes attend in the node's memory (docs/pim.md).")
]
SubBatch = Annotated[
    bool,
    option(
        PANEL,
        "--enable-sub-batch-interleaving",
        text="Two halves of a batch alternate between device and memory (docs/pim.md).",
    ),
]
AttnPrediction = Annotated[
    bool, option(PANEL, "--enable-attn-prediction", text="A bundle's attention by a regressor fitted on it.")
]
Gen = Annotated[bool, option(PANEL, "--gen", text="The older form of --skip-prefill.")]
SkipPrefill = Annotated[
    bool, option(PANEL, "--skip-prefill", text="Decode-only: requests arrive with the KV of their prompts.")
]
BlockCopy = Annotated[
    bool | None,
    option(PANEL, "--enable-block-copy/--no-enable-block-copy", text="No effect: equal blocks are always priced once."),
]
RunId = Annotated[
    str | None,
    option(PANEL, "--run-id", text="What {run_id} stands for in the paths of outputs; run_<us>_<pid> if not given."),
]
InputsRoot = Annotated[
    Path | None, path_option(PANEL, "--inputs-root", text="No effect: there are no intermediate files.")
]
CleanupInputs = Annotated[
    bool | None,
    option(PANEL, "--cleanup-inputs/--no-cleanup-inputs", text="No effect: there are no intermediate files."),
]
