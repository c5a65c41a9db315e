"""Profile bundles: exact at measured points, complete grids, clear errors, warnings about rows
faster than light.
"""

import shutil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config.errors import InputError
from llmsim.config.files import input_files
from llmsim.core import Provenance
from llmsim.costs import CompiledCosts, compile_costs
from llmsim.costs.catalog import look
from llmsim.costs.explain import decode_us, prefill_us
from llmsim.costs.sources.bundle.attention import skew_ps_per_token_q20
from llmsim.costs.sources.bundle.grid_completion import fill_line_axis
from llmsim.costs.sources.bundle.source import BundleSource, expected_moe_us
from llmsim.costs.sources.csv_tables import read_table
from llmsim.model import operators
from tests.costs.builders import (
    PERF,
    attention_rows,
    attention_us,
    mixed_grid,
    request,
    write_bundle,
    write_csv,
)
from tests.shared_data import shared


def compiled(root: Path, **changes: object) -> CompiledCosts:
    return compile_costs(
        request(hardware="MyCard", source="bundle", profile_dirs=(root,), **changes)
    )


def test_dense_rows_are_exact_between_linear_and_beyond_extrapolated(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    costs = compiled(tmp_path, max_tokens=4096)
    op = next(op for op in costs.ops if op.name == "qkv_proj")
    assert op.repeat == 32 and op.feature == "tokens" and len(op.ps) == 4097
    assert [int(op.ps[t]) for t in (0, 1, 2, 16, 2048, 4096)] == [
        0,
        11_000_000,
        12_000_000,
        26_000_000,
        2_058_000_000,
        4_106_000_000,
    ]
    assert [op.provenance[t] for t in (1, 2, 16, 4096)] == [
        Provenance.MEASURED, Provenance.INTERPOLATED, Provenance.MEASURED, Provenance.EXTRAPOLATED,
    ]  # fmt: skip
    head = next(op for op in costs.ops if op.name == "lm_head")
    assert head.feature == "sequences" and len(head.ps) == 129 and int(head.ps[64]) == 164_000_000


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 64),
    kv=st.integers(16, 256),
    chunk=st.integers(16, 512),
    kv_prefill=st.integers(0, 256),
)
def test_a_multilinear_attention_is_reproduced_everywhere(
    grid_costs: CompiledCosts, n: int, kv: int, chunk: int, kv_prefill: int
) -> None:
    attention = grid_costs.attention
    assert decode_us(attention, n, kv) == pytest.approx(attention_us(0, 0, n, kv), abs=2e-6)
    assert prefill_us(attention, chunk, kv_prefill) == pytest.approx(
        attention_us(chunk, kv_prefill, 0, 0), abs=2e-6
    )


@pytest.fixture(scope="module")
def grid_costs(tmp_path_factory: pytest.TempPathFactory) -> CompiledCosts:
    root = tmp_path_factory.mktemp("bundle")
    write_bundle(root)
    return compiled(root)


def test_any_prefill_at_all_runs_the_mixed_kernel(grid_costs: CompiledCosts) -> None:
    grid = mixed_grid(grid_costs.attention)
    assert list(grid.chunk_axis) == [0, 1, 16, 512]
    assert np.array_equal(grid.ps[1], grid.ps[2])
    assert (grid.ps >= 0).all() and (grid.ps[1:] > 0).all()


@settings(max_examples=40, deadline=None)
@given(holes=st.sets(st.integers(0, 71), max_size=60))
def test_holes_of_the_grid_are_filled_without_touching_measurements(
    tmp_path_factory: pytest.TempPathFactory, holes: set[int]
) -> None:
    rows = attention_rows()
    first_mixed = len(rows) - 72
    kept = [
        row
        for index, row in enumerate(rows)
        if index < first_mixed or index - first_mixed not in holes
    ]
    root = tmp_path_factory.mktemp("holes")
    write_bundle(root, tables={"attention.csv": kept})
    grid = mixed_grid(compiled(root).attention)
    assert (grid.ps[1:] > 0).all()
    for chunk, kv_prefill, n, kv, time_us in kept:
        cell = tuple(
            int(np.searchsorted(axis, value))
            for axis, value in zip(
                (grid.chunk_axis, grid.kv_prefill_axis, grid.n_axis, grid.kv_axis),
                (chunk, kv_prefill, n, kv), strict=True,
            )
        )  # fmt: skip
        assert grid.ps[cell] == round(float(time_us) * 1e6)  # type: ignore[arg-type]
        assert grid.provenance[cell] == Provenance.MEASURED


def test_filling_prefers_the_inside_of_a_line() -> None:
    values = np.array([[1.0, np.nan, 3.0, np.nan], [np.nan, 4.0, np.nan, np.nan]])
    marks = np.zeros(values.shape, dtype=np.uint8)
    axis = np.array([0, 10, 20, 40])
    fill_line_axis(values, marks, 1, axis, outside=False)
    assert values[0, 1] == 2.0 and np.isnan(values[0, 3]) and np.isnan(values[1, 0])
    fill_line_axis(values, marks, 1, axis, outside=True)
    assert values.tolist() == [[1.0, 2.0, 3.0, 5.0], [4.0, 4.0, 4.0, 4.0]]


def test_skew_is_the_median_slope_above_the_split_threshold_a_third(tmp_path: Path) -> None:
    path = tmp_path / "skew.csv"
    above = [(64, 1000, 500, 30.0, 30.0 + 3 * 500 * slope) for slope in (0.010, 0.016, 0.090)]
    below = [(2, 1000, 500, 30.0, 30.0 + 3 * 500 * 9.0)] * 9
    write_csv(path, "n,kv_big,kv_mean,t_mean_us,t_skew_us", [*above, *below])
    kappa, how = skew_ps_per_token_q20(path, kv_heads=8, num_sms=188)
    assert kappa / 2**20 == pytest.approx(16_000) and "3 rows" in how
    kappa, how = skew_ps_per_token_q20(path, kv_heads=8, num_sms=0)
    assert "not known" in how and kappa / 2**20 == pytest.approx(9e6)


def test_the_real_bundle_has_the_known_skew_and_no_row_faster_than_light() -> None:
    root = shared(PERF)
    costs = compile_costs(request(source="bundle", profile_dirs=(root,)))
    assert costs.attention.skew_ps_per_token_q20 / 2**20 == pytest.approx(
        16_000, rel=0.05
    )  # 512 B at 32 GB/s
    assert costs.notes == () and not costs.floor.enforce
    grid = mixed_grid(costs.attention)
    assert (grid.ps[1:] > 0).all()
    assert decode_us(costs.attention, 64, 1024) == pytest.approx(221.237)
    assert prefill_us(costs.attention, 2048, 0) == pytest.approx(172.609)


@pytest.mark.parametrize(
    ("file", "content", "place", "says"),
    [
        ("dense.csv", "", ":1:1", "empty"),
        ("dense.csv", "layer,tokens\nqkv_proj,1\n", ":1:3", '"time_us" is missing'),
        ("dense.csv", "layer,token,time_us\nqkv_proj,1,2\n", ":1:4", 'is it "token"'),
        ("dense.csv", "layer,tokens,time_us\n", ":2:1", "no rows"),
        ("dense.csv", "layer,tokens,time_us\nqkv_proj,1,fast\n", ":2:3", '"fast", not a number'),
        (
            "dense.csv",
            "layer,tokens,time_us\nqkv_proj,1,2\nqkv_proj,2,-1\n",
            ":3:3",
            "not negative",
        ),
        ("dense.csv", "layer,tokens,time_us\nqkv_proj,1,nan\n", ":2:3", "finite"),
        (
            "dense.csv",
            "layer,tokens,time_us\nqkv_proj,1\n",
            ":2:3",
            "2 fields where the header has 3",
        ),
        (
            "dense.csv",
            "layer,tokens,time_us\nqkv_proj,1,2\nqkv_proj,1,3\n",
            ":3:1",
            "already given in line 2",
        ),
        ("dense.csv", "layer,tokens,tokens,time_us\nqkv_proj,1,1,2\n", ":1:3", "twice"),
        ("per_sequence.csv", "layer,sequences,time_us\nlm_head,x,2\n", ":2:2", "not a number"),
        (
            "attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1.5,16,2\n",
            ":2",
            "whole number",
        ),
        (
            "attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,2\n",
            ":2:1",
            "pure prefill",
        ),
        (
            "skew.csv",
            "n,kv_big,kv_mean,t_mean_us,t_skew_us\n64,1000,500,30,\n",
            ":2:5",
            "not a number",
        ),
    ],
)
def test_a_malformed_table_is_named_with_line_and_column(
    tmp_path: Path, file: str, content: str, place: str, says: str
) -> None:
    folder = write_bundle(tmp_path)
    (folder / file).write_text(content)
    with pytest.raises(InputError) as caught:
        compiled(tmp_path)
    message = str(caught.value)
    assert f"{file}{place}" in message and says in message and "\n" not in message


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path)
    (folder / "dense.csv").write_bytes(b"layer,tokens,time_us\n\xff\xfe,1,2\n")
    with pytest.raises(InputError, match=r"dense\.csv:2: byte 0xff is not UTF-8"):
        compiled(tmp_path)


def test_what_is_missing_is_said_with_what_is_there(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    cases = [
        (dict(tp=4), "no profile for tp4 .there are: tp1"),
        (dict(model="Qwen/Qwen3-8B"), "models there: meta-llama/Llama-3.1-8B"),
    ]
    for changes, says in cases:
        with pytest.raises(InputError, match=says):
            compiled(tmp_path, **changes)
    with pytest.raises(InputError, match="hardware there: MyCard"):
        compile_costs(request(source="bundle", profile_dirs=(tmp_path,)))
    with pytest.raises(InputError, match="does not exist"):
        compiled(tmp_path / "nowhere")
    with pytest.raises(InputError, match="--profile-dir"):
        compile_costs(request(source="bundle"))


def test_auto_goes_on_to_another_source_and_says_so(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    costs = compile_costs(request(hardware="A40", profile_dirs=(tmp_path,)))
    assert any("no profile bundle is used" in note and "MyCard" in note for note in costs.notes)
    assert costs.sources == ("data sheet of A40",)


def test_a_layer_that_the_bundle_lacks(tmp_path: Path) -> None:
    rows = [("qkv_proj", 1, 2), ("qkv_proj", 16, 3)]
    write_bundle(tmp_path, hardware="A40", tables={"dense.csv": rows})
    with pytest.raises(InputError, match='no rows for layer "embedding"; it has qkv_proj'):
        compile_costs(request(hardware="A40", source="bundle", profile_dirs=(tmp_path,)))
    costs = compile_costs(request(hardware="A40", profile_dirs=(tmp_path,)))
    (note,) = [note for note in costs.notes if "not in the bundle source" in note]
    assert note.startswith("embedding, layernorm, ")
    assert "qkv_proj" not in note


def test_layers_replicated_over_ranks_come_from_tp1(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    few = [
        (name, t, 3 + t)
        for name in ("qkv_proj", "o_proj", "gate_up_proj", "act_fn", "down_proj", "rotary_emb")
        for t in (1, 2048)
    ]
    write_bundle(tmp_path, tp=2, tables={"dense.csv": few})
    costs = compiled(tmp_path, tp=2)
    by_name = {op.name: op for op in costs.ops}
    assert by_name["qkv_proj"].ps[1] == 4_000_000 and by_name["layernorm"].ps[1] == 11_000_000
    assert "/tp1/" in by_name["layernorm"].source and any(
        "layernorm" in note for note in costs.notes
    )
    assert costs.link_collectives


def test_a_bundle_without_variant_folder_is_found(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path)
    plain = tmp_path / "plain" / "mycard" / "Llama-3.1-8B" / "tp1"
    plain.parent.mkdir(parents=True)
    folder.rename(plain)
    assert (
        compiled(tmp_path / "plain").sources[0].startswith("profile bundle mycard/Llama-3.1-8B/tp1")
    )


def test_rows_faster_than_light_give_one_warning_that_names_them(tmp_path: Path) -> None:
    rows = [
        (n, t, 1.0 if n == "qkv_proj" else 500 + t)
        for n in (
            "embedding",
            "layernorm",
            "qkv_proj",
            "rotary_emb",
            "o_proj",
            "gate_up_proj",
            "act_fn",
            "down_proj",
            "final_layernorm",
        )
        for t in (1, 16, 2048)
    ]
    write_bundle(tmp_path, hardware="RTXPRO6000", tables={"dense.csv": rows})
    costs = compile_costs(request(source="bundle", profile_dirs=(tmp_path,)))
    warnings = [note for note in costs.notes if "data sheet" in note]
    assert len(warnings) == 1
    assert (
        "qkv_proj at 1..2048 tokens (3 rows" in warnings[0]
        and "lm_head at 1..64 sequences" in warnings[0]
    )
    assert "o_proj" not in warnings[0]


def test_experts_follow_the_expected_number_of_active_ones(tmp_path: Path) -> None:
    path = tmp_path / "moe.csv"
    points = [(t, a, 2.0 * t + 3.0 * a) for t in (1, 64, 512) for a in (8, 32, 128) if a <= t * 8]
    write_csv(path, "tokens,activated_experts,time_us", points)
    table = read_table(path, text=(), numbers=("tokens", "activated_experts", "time_us"))
    asked = request("Qwen/Qwen3-30B-A3B", "H100")
    op = next(op for op in operators(asked.model, asked.layout, asked.dtypes) if op.kind == "moe")
    times = expected_moe_us(table, op, np.array([1.0, 64.0, 512.0]))
    active = 128 * (1 - (1 - 8 / 128) ** np.array([1.0, 64.0, 512.0]))
    assert times == pytest.approx([2 + 3 * active[0], 128 + 3 * active[1], 1024 + 3 * active[2]])
    assert (np.diff(expected_moe_us(table, op, np.arange(1.0, 2048.0))) >= 0).all()


def test_a_rank_takes_what_its_pairs_and_touched_experts_take(tmp_path: Path) -> None:
    """One pair of eight is an eighth of a token; a rank without any takes no time."""
    folder = write_bundle(tmp_path, hardware="H100")
    moe = tmp_path / "H100" / "Qwen" / "Qwen3-30B-A3B" / "bf16" / "tp1"
    shutil.copytree(folder, moe)
    points = [(t, a, 8.0 * t + 3.0 * a) for t in (0, 512) for a in (0, 128)]
    write_csv(moe / "moe.csv", "tokens,activated_experts,time_us", points)
    asked = request("Qwen/Qwen3-30B-A3B", "H100", source="bundle", profile_dirs=(tmp_path,))
    bundle = look(asked).bundle
    assert bundle is not None
    op = next(op for op in asked.operators if op.kind == "moe")
    price = BundleSource(asked, bundle).experts_us(op)
    pairs, touched = np.array([[0.0, 1.0], [8.0, 80.0]]), np.array([[0.0, 1.0], [8.0, 40.0]])
    assert price(pairs, touched) == pytest.approx(np.array([[0.0, 1 + 3], [8 + 24, 80 + 120]]))


@pytest.mark.parametrize("broken", ["dense.csv", "skew.csv"])
def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    write_bundle(tmp_path)
    opened = input_files.open_binary

    def refuse(path: Path) -> BinaryIO:
        if path.name == broken:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(input_files, "open_binary", refuse)
    with pytest.raises(InputError, match=f"{broken}: cannot be read .Permission denied"):
        compiled(tmp_path)
