"""What a run says about how sure it is, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.core import Provenance
from llmsim.costs.confidence import (
    EXPECTED,
    expected_error,
    farthest,
    refuse_attention_below,
    refuse_below,
)
from llmsim.costs.source import OpCost
from tests.costs.builders import needs_database

ROOT = Path(__file__).resolve().parents[2]
MEASURED, INTERPOLATED, EXTRAPOLATED = (
    Provenance.MEASURED,
    Provenance.INTERPOLATED,
    Provenance.EXTRAPOLATED,
)


def cost(*marks: Provenance) -> OpCost:
    """A table whose rows are so known."""
    ps = np.arange(len(marks), dtype=np.int64)
    return OpCost("qkv_proj", "layer", 1, "tokens", ps, np.array(marks, np.uint8), "a table")


def test_errors_grow_with_ignorance_and_mix_by_time() -> None:
    assert EXPECTED[MEASURED].most < EXPECTED[INTERPOLATED].most < EXPECTED[EXTRAPOLATED].most
    assert EXPECTED[EXTRAPOLATED].most < EXPECTED[Provenance.ANALYTIC].most
    assert expected_error([7, 0, 0, 0, 0]) == (0.0, 0.0)
    assert expected_error([1, 1, 0, 0, 0])[0] == EXPECTED[INTERPOLATED].half / 2
    assert expected_error([0, 0, 0, 0, 0]) == (0.0, 0.0)


def test_only_rows_that_were_read_count() -> None:
    table = cost(MEASURED, MEASURED, INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED)
    assert farthest(table, np.array([9, 9, 9, 0, 0])) is None
    reach = farthest(table, np.array([0, 1, 0, 3, 1]))
    assert reach is not None
    assert (reach.beyond, reach.what) == (2.0, "4 tokens, measured up to 2")
    refuse_below("measured", "group 0", table, np.array([5, 9, 0, 0, 0]))
    with pytest.raises(InputError, match="qkv_proj at 2 tokens is interpolated"):
        refuse_below("measured", "group 0", table, np.array([0, 9, 1, 0, 0]))
    with pytest.raises(InputError, match="qkv_proj at 3 tokens is extrapolated"):
        refuse_below("interpolated", "group 0", table, np.array([0, 9, 1, 1, 0]))


def test_attention_is_refused_by_its_worst_part() -> None:
    refuse_attention_below("interpolated", "group 0", "attention", "a grid", (5, 5, 0, 0, 0))
    with pytest.raises(InputError, match=r"10\.0% of the time of attention is scaled"):
        refuse_attention_below("extrapolated", "group 0", "attention", "a grid", (5, 4, 0, 1, 0))


@needs_database
def test_a_run_reports_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    run = [
        "run",
        "--cluster-config",
        str(ROOT / "cluster_config" / "h100_llama31_8b.json"),
        "--dataset",
        "synthetic:n=5,rate=5,input=300,output=20,seed=1",
    ]
    assert main([*run, "--json"]) == 0
    sources = json.loads(capsys.readouterr().out)["sources"]
    shares = [sources["by_provenance"][code.name.lower()] for code in Provenance]
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    half, most = expected_error([round(share * 10**6) for share in shares])
    assert sources["expected_error_percent"] == pytest.approx(
        {"half": half, "most": most}, abs=1e-3
    )
    assert main([*run, "--require", "measured"]) == 2
    assert "--require measured: group 0" in capsys.readouterr().err
    assert main([*run, "--require", "exact"]) == 2
    assert "it may be measured" in capsys.readouterr().err
