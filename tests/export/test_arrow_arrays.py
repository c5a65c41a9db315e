"""Arrow arrays that are made without pandas are those of `pyarrow.array`."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from llmsim.export.arrow_arrays import numbers, words

ROOT = Path(__file__).resolve().parents[2]
KINDS = [(np.int64, pa.int64()), (np.int32, pa.int64()), (np.uint8, pa.uint8())]


@pytest.mark.parametrize(("dtype", "kind"), [*KINDS, (np.float64, pa.float64())])
@pytest.mark.parametrize("length", [0, 1, 8, 9, 1000])
def test_numbers_are_those_of_pyarrow(dtype: type, kind: pa.DataType, length: int) -> None:
    random = np.random.default_rng(length)
    values = random.integers(0, 100, length).astype(dtype)
    for missing in (None, random.random(length) < 0.3):
        found = numbers(values, kind, missing)
        found.validate(full=True)
        assert found.equals(pa.array(values, kind, mask=missing))


def test_numbers_of_every_other_place_are_those_of_pyarrow() -> None:
    values = np.arange(20, dtype=np.int64)[::2]
    assert numbers(values, pa.int64()).equals(pa.array(values))


def test_no_number_is_stored_as_another_one() -> None:
    with pytest.raises(TypeError):
        numbers(np.array([2**40]), pa.int32())


@pytest.mark.parametrize("length", [0, 1, 8, 9, 1000])
def test_words_are_those_of_pyarrow(length: int) -> None:
    random = np.random.default_rng(length)
    values = [None if one < 0.3 else "ü" * int(10 * one) for one in random.random(length)]
    found = words(values)
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.string()))


def test_a_run_that_writes_its_files_loads_no_pandas(tmp_path: Path) -> None:
    """Loading it takes longer than a short run. The costs are compiled anew, which reads tables."""
    code = (
        "import sys\nfrom llmsim.cli import main\n"
        "assert main(sys.argv[1:]) == 0\nassert 'pandas' not in sys.modules"
    )
    given = ["run", "--cluster-config", "cluster_config/h100_llama31_8b.json", "--quiet"]
    given += ["--dataset", "synthetic:n=5,rate=5,input=100,output=5,seed=1"]
    given += ["--run-dir", str(tmp_path / "run"), "--output", str(tmp_path / "requests.csv")]
    done = subprocess.run(
        [sys.executable, "-c", code, *given],
        cwd=ROOT,
        env={"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "LLMSIM_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "requests.parquet").is_file()
