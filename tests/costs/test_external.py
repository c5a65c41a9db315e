"""Tables of external simulators: the contract row by row, interpolation in utilisation, and what
each row answers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config.errors import InputError, LlmsimError
from llmsim.core import Provenance
from llmsim.costs import compile_costs
from llmsim.costs.sources.external.interpolation import interpolate
from llmsim.costs.sources.external.table import parse_point, read_external
from tests.costs.builders import request, split_grid

ROWS: list[dict[str, Any]] = [
    {"operator": "gemm", "device": "A40", "tokens": 1, "n": 4096, "k": 4096, "latency_us": 60.0},
    {"operator": "gemm", "device": "A40", "tokens": 64, "n": 4096, "k": 4096, "latency_us": 64.0},
    {
        "operator": "decode",
        "sequences": 1,
        "cached_tokens": 1024,
        "latency_us": 20,
        "kind": "measured",
    },
    {
        "operator": "decode",
        "sequences": 16,
        "cached_tokens": 1024,
        "latency_us": 120,
        "kind": "measured",
    },
    {
        "operator": "prefill",
        "new_tokens": 512,
        "cached_tokens": 0,
        "latency_us": 200,
        "kind": "measured",
    },
]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """The rows in the form of the file's ending."""
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        parquet.write_table(
            pa.table({name: [row.get(name) for row in rows] for name in names}), path
        )
    else:
        names = dict.fromkeys(name for row in rows for name in row)
        lines = [
            ",".join(names),
            *(",".join(str(row.get(name, "")) for name in names) for row in rows),
        ]
        path.write_text("\n".join(lines) + "\n")
    return path


def test_the_three_forms_say_the_same(tmp_path: Path) -> None:
    tables = [
        read_external(write(tmp_path / f"t.{ending}")) for ending in ("csv", "json", "parquet")
    ]
    stripped = [
        [(p.operator, p.device, dict(p.shape), p.latency_us, p.kind) for p in t.points]
        for t in tables
    ]
    assert stripped[0] == stripped[1] == stripped[2]


def test_units_and_energy() -> None:
    point = parse_point(
        {"operator": "moe", "tokens": "8", "latency_ms": "0.5", "energy_mj": 2, "confidence": ""},
        "t:2",
    )
    assert (point.latency_us, point.energy_uj, point.confidence, point.kind) == (
        500.0,
        2000.0,
        1.0,
        "simulated",
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"operator": None}, '"operator" is missing'),
        ({"latency_us": None}, "no latency"),
        ({"latency_us": -1}, "latency_us"),
        ({"latency_us": "soon"}, "'soon'"),
        ({"latency_us": float("nan")}, "latency_us"),
        ({"latency_us": 1e12}, "must be from 0"),
        ({"latency_ns": 5}, "twice"),
        ({"tokens": 1.5}, "whole number"),
        ({"confidence": 2}, "confidence is 2"),
        ({"kind": "guessed"}, 'kind is "guessed"'),
        ({"k": None}, 'needs the column "k"'),
        ({"operator": "moe", "tokens": None}, "neither tokens nor sequences"),
        ({"operator": "decode"}, 'needs the column "sequences"'),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    row = {k: v for k, v in {**ROWS[0], **change}.items() if v is not None}
    for ending, place in (("csv", ":2"), ("json", "row 0")):
        if ending == "json" and change.get("latency_us") != change.get("latency_us"):
            continue
        with pytest.raises(InputError, match=expected) as error:
            read_external(write(tmp_path / f"t.{ending}", [row]))
        assert f"t.{ending}" in str(error.value)
        assert place in str(error.value)


@given(st.binary(max_size=60), st.sampled_from(["csv", "json", "parquet"]))
@settings(max_examples=60)
def test_damaged_files_end_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, ending: str
) -> None:
    path = tmp_path_factory.mktemp("t") / f"t.{ending}"
    path.write_bytes(data)
    with pytest.raises(LlmsimError) as error:
        read_external(path)
    assert "\n" not in str(error.value)


@given(st.lists(st.integers(1, 5000), min_size=2, max_size=6, unique=True), st.integers(1, 100))
def test_constant_utilisation_is_reproduced_everywhere(points: list[int], at: int) -> None:
    found, _ = interpolate(
        np.array(points, float)[:, None], np.full(len(points), 0.37), np.array([[float(at)]])
    )
    assert found[0] == pytest.approx(0.37)


def test_points_are_hit_and_marked() -> None:
    grid = np.array([[n, kv] for n in (1, 8) for kv in (64, 512)], float)
    values = np.array([0.1, 0.2, 0.3, 0.4])
    found, marks = interpolate(grid, values, np.array([[8.0, 64.0], [4.0, 100.0], [9.0, 64.0]]))
    assert found[0] == pytest.approx(0.3)
    assert marks.tolist() == [Provenance.MEASURED, Provenance.INTERPOLATED, Provenance.EXTRAPOLATED]
    scattered = np.vstack([grid, [[3.0, 90.0]]])
    again, _ = interpolate(scattered, np.append(values, 0.15), scattered)
    assert again == pytest.approx(np.append(values, 0.15))


def test_rows_price_what_they_name(tmp_path: Path) -> None:
    costs = compile_costs(request(hardware="A40", cost_tables=(write(tmp_path / "t.csv"),)))
    ops = {op.name: op for op in costs.ops}
    assert ops["o_proj"].ps[1] == 60_000_000
    assert ops["o_proj"].ps[64] == 64_000_000
    assert "t.csv (simulated)" in ops["o_proj"].source
    assert set(np.unique(ops["o_proj"].provenance[1:])) == {
        Provenance.ANALYTIC
    }  # a simulator's point is not measured
    assert "from other shapes" in ops["gate_up_proj"].source
    assert ops["gate_up_proj"].ps[1] == pytest.approx(
        60_000_000 * 7, rel=0.01
    )  # seven times the bytes, as well used
    assert "data sheet" in ops["layernorm"].source
    split = split_grid(costs.attention)
    assert Provenance.INTERPOLATED in split.decode_provenance
    assert Provenance.ANALYTIC not in split.decode_provenance


def test_a_repeated_row_changes_no_time(tmp_path: Path) -> None:
    once = compile_costs(request(hardware="A40", cost_tables=(write(tmp_path / "t.csv"),)))
    twice = compile_costs(
        request(hardware="A40", cost_tables=(write(tmp_path / "u.csv", [*ROWS, *ROWS]),))
    )
    for one, other in zip(once.ops, twice.ops, strict=True):
        assert np.array_equal(one.ps, other.ps), one.name
    grid, again = split_grid(once.attention), split_grid(twice.attention)
    assert np.array_equal(grid.prefill_ps, again.prefill_ps)
    assert np.array_equal(grid.decode_ps, again.decode_ps)


@pytest.mark.parametrize("changed", range(len(ROWS)))
def test_rows_that_contradict_each_other_are_refused(tmp_path: Path, changed: int) -> None:
    other = {**ROWS[changed], "latency_us": 3.25}
    table = write(tmp_path / "t.csv", [*ROWS, other])
    with pytest.raises(InputError, match=r"of this shape has 3.25 us, and .*; keep one") as error:
        compile_costs(request(hardware="A40", cost_tables=(table,)))
    assert f"t.csv:{len(ROWS) + 2}:" in str(error.value)
    assert f"t.csv:{changed + 2};" in str(error.value)


def test_other_devices_and_degrees_are_left_alone(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", [{**ROWS[0], "tp": 4}])
    with pytest.raises(InputError, match="none of the 1 row"):
        compile_costs(request(hardware="A40", cost_tables=(table,)))
    with pytest.raises(InputError, match="they are for A40"):
        compile_costs(request(hardware="L4", cost_tables=(write(tmp_path / "u.csv", ROWS[:1]),)))


def test_external_alone_needs_every_operator(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv")
    with pytest.raises(InputError, match=r'the operator "embedding" .* or --cost-source auto'):
        compile_costs(request(hardware="A40", cost_tables=(table,), source="external"))
    with pytest.raises(InputError, match="give --cost-table"):
        compile_costs(request(hardware="A40", source="external"))


def test_heads_select_rows(tmp_path: Path) -> None:
    rows = [
        {**row, "heads": 999} if row["operator"] in ("decode", "prefill") else row for row in ROWS
    ]
    costs = compile_costs(request(hardware="A40", cost_tables=(write(tmp_path / "t.csv", rows),)))
    assert "data sheet" in costs.attention.source


def test_a_changed_table_is_read_again(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv")
    before = compile_costs(request(hardware="A40", cost_tables=(table,)))
    write(table, [{**row, "latency_us": row["latency_us"] * 2} for row in ROWS])
    after = compile_costs(request(hardware="A40", cost_tables=(table,)))
    assert {op.name: op for op in after.ops}["o_proj"].ps[1] == 2 * {
        op.name: op for op in before.ops
    }["o_proj"].ps[1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"operator": "qkv_prj", "tokens": 1}, '"qkv_prj" is no operator of'),
        ({"operator": "qkv_prj", "tokens": 1}, '(did you mean "qkv_proj"?)'),
        (
            {"operator": "lm_head", "tokens": 1},
            "lm_head depends on sequences, which the row does not state (1 row)",
        ),
        ({"operator": "o_proj", "tokens": 1, "n": 7, "k": 7}, "o_proj of another shape than n="),
        (
            {"operator": "decode", "sequences": 1, "cached_tokens": 1, "heads": 3},
            "decode of other heads",
        ),
        ({"operator": "attention", "tokens": 1}, "has rows named prefill and decode (1 row)"),
        ({"operator": "lm_head", "sequences": 1}, ""),
        ({"operator": "decode", "sequences": 1, "cached_tokens": 1}, ""),
    ],
)
def test_rows_that_no_operator_takes_are_named(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    table = write(tmp_path / "t.csv", [*ROWS, {**row, "latency_us": 1e6}])
    notes = compile_costs(request(hardware="A40", cost_tables=(table,))).notes
    found = [note for note in notes if "rows that are not used" in note]
    assert len(found) == (said != "")
    assert not said or said in found[0]


@pytest.mark.parametrize(("latency", "fast"), [(1e-4, True), (1e5, False)])
def test_rows_that_beat_the_data_sheet_are_named(
    tmp_path: Path, latency: float, fast: bool
) -> None:
    rows = [
        {"operator": "qkv_proj", "tokens": 4096, "latency_us": latency},
        {"operator": "gemm", "tokens": 1, "n": 4096, "k": 4096, "latency_us": latency},
        {"operator": "decode", "sequences": 64, "cached_tokens": 4096, "latency_us": latency},
    ]
    table = write(tmp_path / "t.csv", rows)
    notes = compile_costs(request(hardware="A40", cost_tables=(table,))).notes
    said = " ".join(note for note in notes if "faster than the data sheet allows" in note)
    named = ("qkv_proj at 4096 tokens", "gemm n=4096 k=4096", "decode attention")
    assert [name in said for name in named] == [fast] * 3
