"""Compilation and its disk cache: same inputs same bytes, damage and change rebuild, nothing heavy
is imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from processes import HANGS_S

from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.costs import CompiledCosts, cache, compile_costs
from llmsim.costs.catalog import look
from llmsim.costs.compile import build
from llmsim.costs.explain import explain
from llmsim.costs.interpolation_grid import geometric_axis
from llmsim.costs.source import curve_from_points, to_ps
from tests.costs.builders import LLAMA, needs_database, request, write_bundle

ROOT = Path(__file__).resolve().parents[2]


def same(one: CompiledCosts, other: CompiledCosts) -> bool:
    return cache.pack(one) == cache.pack(other)


def test_packing_is_lossless_and_compiling_is_repeatable(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    for asked in (
        request(hardware="MyCard", source="bundle", profile_dirs=(tmp_path,)),
        request(hardware="RTX4090", source="roofline"),
    ):
        costs = build(asked, look(asked))
        assert same(cache.unpack(cache.pack(costs)), costs)
        assert same(build(asked, look(asked)), costs)
        assert same(compile_costs(asked), compile_costs(asked))


def test_a_process_reads_a_cache_file_once_and_again_when_it_changes(own_cache: Path) -> None:
    asked = request(hardware="RTX4090")
    costs = compile_costs(asked)
    (file,) = (own_cache / "costs").glob("*.bin")
    first = cache.load(file.stem)
    assert first is not None and same(first, costs) and first is not costs
    assert cache.load(file.stem) is first
    with pytest.raises(ValueError, match="read-only"):
        first.ops[0].ps[0] = 1
    file.write_bytes(cache.pack(replace(costs, table_hash="another")))
    changed = cache.load(file.stem)
    assert changed is not None and changed.table_hash == "another"
    file.unlink()
    assert cache.load(file.stem) is None


def test_a_damaged_cache_file_is_rebuilt(own_cache: Path) -> None:
    asked = request(hardware="RTX4090")
    costs = compile_costs(asked)
    (file,) = (own_cache / "costs").glob("*.bin")
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damage in (
        b"",
        whole[:10],
        whole[: len(whole) // 2],
        bytes(flipped),
        b"x" * 100,
        whole + b"!",
    ):
        file.write_bytes(damage)
        assert same(compile_costs(asked), costs)
        assert file.read_bytes() == whole


def test_the_cache_is_read_and_leaves_nothing_else_behind(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(hardware="RTX4090")
    costs = compile_costs(asked)
    monkeypatch.setattr("llmsim.costs.compile.build", lambda *_: pytest.fail("compiled again"))
    assert same(compile_costs(asked), costs)
    assert [path.suffix for path in (own_cache / "costs").iterdir()] == [".bin"]


def test_any_change_of_the_inputs_compiles_anew(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path)
    asked = request(hardware="MyCard", source="bundle", profile_dirs=(tmp_path,))
    first = compile_costs(asked)
    text = (folder / "dense.csv").read_text()
    (folder / "dense.csv").write_text(text.replace("qkv_proj,1,11", "qkv_proj,1,12"))
    second = compile_costs(asked)
    assert first.table_hash != second.table_hash
    assert next(op for op in second.ops if op.name == "qkv_proj").ps[1] == 12_000_000
    assert compile_costs(replace(asked, max_seqs=64)).table_hash != second.table_hash


def test_the_table_hash_does_not_depend_on_where_the_bundle_lies(tmp_path: Path) -> None:
    hashes = set()
    for name in ("here", "there"):
        write_bundle(tmp_path / name)
        asked = request(hardware="MyCard", source="bundle", profile_dirs=(tmp_path / name,))
        hashes.add(compile_costs(asked).table_hash)
    assert len(hashes) == 1


def test_a_cache_that_cannot_be_written_is_only_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LLMSIM_CACHE", str(blocked))
    costs = compile_costs(request(hardware="RTX4090"))
    assert any("not writable" in note and "LLMSIM_CACHE" in note for note in costs.notes)


def test_parallel_processes_share_the_cache(own_cache: Path) -> None:
    program = (
        "from tests.costs.builders import request; from llmsim.costs import compile_costs;"
        "print(compile_costs(request(hardware='RTX4090')).table_hash)"
    )
    environment = dict(os.environ, LLMSIM_CACHE=str(own_cache), PYTHONPATH=str(ROOT))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=HANGS_S)[0] for process in running}
    assert answers == {compile_costs(request(hardware="RTX4090")).table_hash + "\n"}
    assert len(list((own_cache / "costs").iterdir())) == 1


@needs_database
def test_a_cached_run_imports_no_heavy_library(own_cache: Path) -> None:
    compile_costs(request(source="silicon"))
    program = (
        "import sys; from llmsim.model import *; from llmsim.costs import "
        f"CostRequest, compile_costs;m = load_model({LLAMA!r}); l = Layout(); d = Dtypes();r = "
        "CostRequest(m, l, d, 'RTXPRO6000', load_hardware('RTXPRO6000'), 0, operators(m, l, d), "
        "2048, 128, 16384,(1, 2, 4, 8, 256, 512), source='silicon'); "
        "print(compile_costs(r).table_hash);bad = {'pandas', 'scipy', 'pyarrow', 'yaml', "
        "'aiconfigurator_core'} & set(sys.modules); assert not bad, bad"
    )
    environment = dict(os.environ, LLMSIM_CACHE=str(own_cache), PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == compile_costs(request(source="silicon")).table_hash
    assert len(list((own_cache / "costs").iterdir())) == 1


def test_unknown_hardware_says_how_to_give_a_data_sheet() -> None:
    for bandwidth in (0, 10**12):
        with pytest.raises(
            InputError, match=r'the hardware "H10O" is not known \(did you mean "H100.*data sheet'
        ):
            compile_costs(request(hardware="H10O", group_memory_bandwidth_bytes_per_s=bandwidth))


def test_explain_shows_every_operator_and_where_it_comes_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    costs = compile_costs(request(hardware="A6000"))
    text = explain(costs)
    assert (
        all(op.name in text for op in costs.ops)
        and "data sheet of" in text
        and costs.table_hash in text
    )
    assert main(["times", "show", LLAMA, "RTX4090", "--source", "roofline"]) == 0
    assert "decode of 32" in capsys.readouterr().out
    assert main(["times", "show", LLAMA, "Nothing"]) == 2
    assert "is not known" in capsys.readouterr().err


@given(last=st.integers(2, 300_000), per_octave=st.integers(1, 16))
def test_axes_rise_from_first_to_last(last: int, per_octave: int) -> None:
    axis = geometric_axis(1, last, per_octave)
    assert axis[0] == 1 and axis[-1] == last and (np.diff(axis) > 0).all()
    assert (axis[1:] <= np.ceil(axis[:-1] * 2 ** (1 / per_octave)) + 1).all()


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.floats(0.1, 1e4)),
        min_size=2,
        max_size=20,
        unique_by=lambda x: x[0],
    )
)
def test_curves_pass_through_their_points_and_never_fall_beyond_them(
    rows: list[tuple[int, float]],
) -> None:
    rows.sort()
    points, times = np.array([r[0] for r in rows], dtype=float), np.array([r[1] for r in rows])
    curve = curve_from_points(points, times, 600, "x")
    assert curve.ps[0] == 0 and (curve.ps[points.astype(int)] == to_ps(times)).all()
    assert (np.diff(curve.ps[int(points[-1]) :]) >= 0).all()
    assert (curve.ps[1:] >= int(times.min() * 1e6)).all()


def test_times_round_half_up() -> None:
    assert to_ps(np.array([0.5e-6, 1.5e-6, 2.4e-6])).tolist() == [1, 2, 2]


def crafted(tree: object, arrays: object, blocks: bytes = b"") -> bytes:
    """A file with a right checksum, whatever is in it."""
    import zlib

    header = json.dumps({"tree": tree, "arrays": arrays}).encode()
    header += b" " * (-len(header) % cache.ALIGNMENT)
    body = header + blocks
    return (
        cache.MAGIC
        + zlib.crc32(body).to_bytes(8, "little")
        + len(header).to_bytes(8, "little")
        + body
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_crafted_cache_file_is_rebuilt(seed: int, own_cache: Path) -> None:
    """Any value of the header may be another, or of another type; arrays may be shorter than what
    refers to them.
    """
    import pickle
    import random

    draw = random.Random(seed)
    asked = request(hardware="RTX4090")
    costs = compile_costs(asked)
    (file,) = (own_cache / "costs").glob("*.bin")
    whole = file.read_bytes()
    start = len(cache.MAGIC) + 16
    length = int.from_bytes(whole[16:24], "little")
    header = json.loads(whole[start : start + length])
    others = [
        None,
        -1,
        1 << 70,
        "x",
        [],
        {},
        {"array": 99},
        {"class": "Path", "members": {}},
        0.5,
        True,
    ]

    def values(tree: object) -> list[tuple[object, object]]:
        inside = (
            tree.items()
            if isinstance(tree, dict)
            else enumerate(tree)
            if isinstance(tree, list)
            else []
        )
        return [place for key, one in inside for place in [(tree, key), *values(one)]]

    choice = draw.randrange(4)
    if choice == 0:
        owner, key = draw.choice(values(header["tree"]))
        before, after = owner[key], draw.choice(others)  # type: ignore[index]
        owner[key] = after  # type: ignore[index]
        changed_type = type(before) is not type(after)
        damage = crafted(header["tree"], header["arrays"], whole[start + length :])
    elif choice == 1:
        index = draw.randrange(len(header["arrays"]))
        header["arrays"][index] = draw.choice(
            [["object", [1]], ["int64", [-1]], ["int64", [1 << 60]], ["uint8", []]]
        )
        damage, changed_type = (
            crafted(header["tree"], header["arrays"], whole[start + length :]),
            True,
        )
    elif choice == 2:
        damage, changed_type = (
            draw.choice([pickle.dumps(costs.notes), crafted([], []), crafted({}, {})]),
            True,
        )
    else:
        deep: object = 1
        for _ in range(300):
            deep = {"tuple": [deep]}
        damage, changed_type = crafted(deep, []), True
    file.write_bytes(damage)
    found = compile_costs(asked)
    if changed_type:
        assert same(found, costs)
    assert isinstance(found, CompiledCosts) and len(found.ops) == len(costs.ops)


def test_a_cache_file_that_is_none_is_not_opened(own_cache: Path) -> None:
    """A pipe would wait for ever; a file of a terabyte, here one of holes, would fill
    the memory.
    """
    asked = request(hardware="RTX4090")
    costs = compile_costs(asked)
    (file,) = (own_cache / "costs").glob("*.bin")
    file.unlink()
    os.mkfifo(file)
    assert same(compile_costs(asked), costs)
    file.unlink()
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    assert same(compile_costs(asked), costs)


@pytest.mark.parametrize(("hardware", "noted"), [("H100", True), ("RTX4090", False)])
def test_a_missing_silicon_database_is_a_note(
    hardware: str, noted: bool, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a device is in the database, and the package that carries it is not installed on this
    platform.
    """
    from llmsim.costs.sources.silicon import database

    monkeypatch.setattr(database, "PACKAGE", "no_such_package_here")
    asked = request(hardware=hardware)
    if not noted:
        asked = replace(
            asked, hardware=replace(asked.hardware, similar_to=None, silicon_system=None)
        )
    said = [note for note in compile_costs(asked).notes if "silicon database" in note]
    assert len(said) == noted
    assert all("rest on the data sheet of" in note for note in said)
