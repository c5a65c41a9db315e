"""Which shapes of experts in 16 bits run with an engine's default tiles, since it has no tuned file
for them: vLLM up to 0.16 takes its first ones (`presets/tuned_experts.json`), as SGLang does.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.config.files import input_files
from llmsim.costs.experts.grouped_work import MoeShape
from llmsim.costs.source import EngineVersions
from llmsim.costs.sources.silicon.database import TablePath
from llmsim.presets import PRESETS_DIR

FILE_NAME = "tuned_experts.json"
LAST_FIRST_TILES = (0, 16)
"""The last release of vLLM that was read and has the first default tiles."""
FIRST_TILE_ROWS = 64
"""Rows of one expert in the first default tile for more tokens than experts."""


@cache
def _files() -> Mapping[str, Any]:
    files: Mapping[str, Any] = json.loads(input_files.read_bytes(PRESETS_DIR / FILE_NAME))
    return files


def has_first_tiles(engine: EngineVersions, system: str, shape: MoeShape) -> bool:
    """Whether the engine's release runs the shape with the first default tiles on the card."""
    cards = _files()["vllm"].get(engine.vllm) if engine.framework == "vllm" else None
    if cards is None:
        return False
    return [shape.experts // shape.ep, shape.inter // shape.tp] not in cards.get(system, [])


def timed_with_first_tiles(table: TablePath) -> bool:
    """Whether a table of vLLM is of a release that has the first default tiles itself."""
    release = re.match(r"(\d+)\.(\d+)", table.path.parent.name)
    if table.framework != "vllm" or release is None:
        return False
    return (int(release[1]), int(release[2])) <= LAST_FIRST_TILES


def untuned_rows(system: str, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows SGLang measured with them; `sizes` as `rows.SHAPE` names its columns."""
    tuned = {tuple(one) for one in _files()["sglang"].get(system, [])}
    _, inter, _, experts, tp, ep = sizes.T
    held = zip((experts // ep).tolist(), (inter // tp).tolist(), strict=True)
    return np.array([one not in tuned for one in held], dtype=np.bool_)
