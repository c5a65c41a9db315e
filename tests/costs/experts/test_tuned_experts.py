"""Tiles of experts without a tuned file, which changed between releases of vLLM."""

from typing import Any

import numpy as np
import pytest

from llmsim.costs import EngineVersions, compile_costs
from llmsim.costs.experts.grouped_work import MoeShape
from llmsim.costs.sources.silicon.database import read_columns
from llmsim.costs.sources.silicon.experts.rows import COLUMNS, SHAPE
from llmsim.costs.sources.silicon.experts.tuned import has_first_tiles, untuned_rows
from llmsim.lowering.group import engine_versions
from llmsim.model import load_model, resolve_dtypes
from tests.costs.builders import database, needs_database, request

pytestmark = needs_database

GLM, QWEN = "zai-org/GLM-4.5", "Qwen/Qwen3-235B-A22B"
EARLIER, LATER = "vllm-0.11", "vllm-0.24"


def asked(name: str, profile: str, *, tp: int = 8, hardware: str = "H200", **more: Any) -> Any:
    found = request(
        name,
        hardware,
        tp=tp,
        dtypes=resolve_dtypes(load_model(name)),
        max_tokens=8192,
        engine=engine_versions(profile),
        **more,
    )
    return next(op for op in compile_costs(found).ops if op.name == "moe")


def shape(experts: int, width: int, tp: int = 1, ep: int = 1) -> MoeShape:
    return MoeShape(4096, width * tp, 8, experts * ep, tp, ep)


@pytest.mark.parametrize(
    ("release", "system", "experts", "width", "first"),
    [
        ("0.11", "h200_sxm", 160, 192, True),
        ("0.11", "h200_sxm", 128, 192, False),
        ("0.11", "h100_sxm", 128, 768, True),
        ("0.11", "h200_sxm", 128, 768, False),
        ("0.10", "h100_sxm", 128, 1856, True),
        ("0.13", "h100_sxm", 128, 1856, False),
        ("0.5.4", "h200_sxm", 8, 14336, True),  # no file of that card yet
        ("0.24", "h200_sxm", 160, 192, False),
        ("", "h200_sxm", 160, 192, False),
    ],
)
def test_releases_and_shapes(
    release: str, system: str, experts: int, width: int, first: bool
) -> None:
    """As the wheels' file names have it; 0.24 has other tiles by default."""
    engine = EngineVersions(release)
    assert has_first_tiles(engine, system, shape(experts, width)) == first
    assert has_first_tiles(engine, system, shape(experts, width, tp=2, ep=4)) == first
    sglang = EngineVersions(release, framework="sglang")
    assert not has_first_tiles(sglang, system, shape(experts, width))


def test_measured_rows_of_untuned_shapes_jump_where_tokens_outnumber_experts() -> None:
    """The first default tiles are 16 rows high up to as many tokens as experts, then 64."""
    table = next(one for one in database("H200").tables("moe") if " sglang 0.5.10 " in one.label)
    rows = read_columns(table.path, COLUMNS)
    keep = (rows["moe_dtype"] == "bfloat16") & (rows["distribution"] == "balanced")
    sizes = np.stack([rows[name].astype(np.int64) for name in SHAPE], axis=1)
    keep &= (sizes == np.array([6144, 2560, 8, 160, 8, 1])).all(axis=1)
    assert untuned_rows("h200_sxm", sizes[keep]).all()
    at = dict(zip(rows["num_tokens"][keep].tolist(), rows["latency"][keep].tolist(), strict=True))
    assert at[192] / at[160] > 1.3 and at[160] / at[128] < 1.1


def test_prompts_of_untuned_shapes_are_slower_in_earlier_releases() -> None:
    """GLM-4.5 on eight H200 has 160 experts 192 wide, for which no release has a file."""
    earlier, later = asked(GLM, EARLIER), asked(GLM, LATER)
    assert "sglang" in earlier.source and "default tiles of vLLM 0.11" in earlier.source
    assert "vllm 0.24" in later.source or "vllm 0.19" in later.source
    assert 1.1 < earlier.ps[8192] / later.ps[8192] < 1.7
    assert 0.8 < earlier.ps[64] / later.ps[64] < 1.0, "tiles of 16 rows suit few tokens"


def test_tuned_shapes_are_as_measured_of_the_engine() -> None:
    earlier = asked(QWEN, EARLIER)
    assert "vllm" in earlier.source and "default tiles" not in earlier.source


def test_the_term_can_be_switched_off() -> None:
    off = asked(GLM, EARLIER, default_tiles=False)
    assert "default tiles" not in off.source


def test_narrow_experts_have_no_such_tiles() -> None:
    """Block-wise scales fix the tiles."""
    assert "default tiles" not in asked("deepseek-ai/DeepSeek-V3", EARLIER).source


def test_a_table_of_an_earlier_release_is_taken_itself() -> None:
    """The A100's rows are of vLLM 0.14, which has the first default tiles."""
    source = asked("Qwen/Qwen3-30B-A3B", EARLIER, tp=1, hardware="A100").source
    assert "vllm 0.14.0" in source and "default tiles" not in source
