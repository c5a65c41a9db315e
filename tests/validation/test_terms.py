"""Each fidelity term can be switched off, changes what it names, and is recorded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_logs import run_arguments, simulate

from llmsim.api.preparation.prepare import prepare
from llmsim.cli import run_main
from llmsim.cli.run.arguments import checked_options
from llmsim.costs.source import (
    CompiledCosts,
    Floor,
    MixedAttention,
    MixedGrid,
    SplitAttention,
    SplitGrid,
)
from llmsim.lowering.adjust.ablation_terms import TERMS, costs_without

FLOOR = Floor(0, 0, 0, 0, 0, 0, True)


def costs(kind: type[MixedAttention] | type[SplitAttention], grid: Any) -> CompiledCosts:
    attention = kind(repeat=2, grid=grid, skew_ps_per_token_q20=77, source="s", skew_source="k")
    return CompiledCosts((), attention, FLOOR, False, (), (), "")


def grid() -> MixedGrid:
    """Zero where nothing runs, independent of the axis that is absent, and dearer than the sum
    where both are.
    """
    chunk, kv_prefill, n, kv = (
        np.array(axis) for axis in ([0, 1, 512], [0, 1024], [0, 4, 8], [0, 2048])
    )
    c, p, d, k = np.meshgrid(chunk, kv_prefill, n, kv, indexing="ij")
    ps = c * (1000 + p) + d * (500 + k) + 9 * c * d
    return MixedGrid(chunk, kv_prefill, n, kv, ps, np.zeros(ps.shape, np.uint8))


def test_without_the_mixed_step_its_parts_add_up() -> None:
    full = grid()
    attention = costs_without(costs(MixedAttention, full), ("mixed_step",)).attention
    assert isinstance(attention, MixedAttention) and attention.skew_ps_per_token_q20 == 77
    ps = attention.grid.ps
    assert np.array_equal(ps[0], full.ps[0]) and np.array_equal(ps[:, :, 0], full.ps[:, :, 0])
    assert (
        np.array_equal(ps[2, 1, 2, 1], full.ps[2, 1, 0, 0] + full.ps[0, 0, 2, 1])
        and ps[2, 1, 2, 1] < full.ps[2, 1, 2, 1]
    )


def test_without_decode_skew_and_with_split_tables() -> None:
    axis, marks = np.array([0, 1]), np.zeros((2, 2), np.uint8)
    split = SplitGrid(
        axis,
        axis,
        np.ones((2, 2), np.int64),
        marks,
        axis,
        axis,
        np.ones((2, 2), np.int64),
        marks,
        55,
    )
    attention = costs_without(costs(SplitAttention, split), ("mixed_step", "decode_skew")).attention
    assert isinstance(attention, SplitAttention)
    assert attention.grid.mixed_decode_ps_per_kv_token_q20 == 0
    assert attention.skew_ps_per_token_q20 == 0


@pytest.mark.parametrize(
    ("term", "field", "value"),
    [
        ("async_lag", "async_scheduling", False),
        ("graph_padding", "cuda_graph_sizes", ()),
        ("prefix_cache", "enable_prefix_caching", False),
        ("api_latency", "api_latency_ps", 0),
        ("host_gap", "host_gap_ps", 0),
        ("host_sequence", "host_sequence_ps", 0),
    ],
)
def test_engine_terms(term: str, field: str, value: object) -> None:
    older = ("--engine-profile", "vllm-0.5.4") if term.startswith("host") else ()
    with_term = prepare(checked_options(run_arguments(*older))).lowered.groups[0].engine
    assert getattr(with_term, field) != value
    lowered = prepare(checked_options(run_arguments("--disable-term", term, *older))).lowered
    assert getattr(lowered.groups[0].engine, field) == value
    assert any(term in note for note in lowered.notes)


def test_padding_is_gone(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for name, options in (("with", ()), ("without", ("--disable-term", "graph_padding"))):
        simulate("--run-dir", tmp_path / name, *options)
        steps = pq.read_table(tmp_path / name / "steps.parquet")
        padded = steps["padded_tokens"].to_numpy() > steps["tokens"].to_numpy()
        assert padded.any() == (name == "with")


def test_the_manifest_and_the_summary_say_what_was_off(tmp_path: Path) -> None:
    simulate("--run-dir", tmp_path, "--disable-term", "api_latency", "--disable-term", "async_lag")
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["config"]["disabled_terms"] == ["api_latency", "async_lag"]
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert sum("is switched off" in note for note in summary["notes"]) == 2


def test_unknown_terms_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(run_arguments("--disable-term", "decode_skev")) == 2
    assert 'did you mean "decode_skew"' in capsys.readouterr().err


def test_the_documentation_names_every_term() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "calibration.md").read_text(
        encoding="utf-8"
    )
    assert all(f"`{name}`" in text for name in TERMS)
