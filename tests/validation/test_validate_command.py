"""`llmsim validate`, `--arrivals` and the ablation script as a person meets them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_logs import ROOT, rows_of, run_arguments, simulate, write_engine_log

from llmsim.cli import main, run_main
from llmsim.validation import read_recording


def test_markdown_json_and_files(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_engine_log(rows_of(run / "out.csv"), tmp_path / "log.jsonl")
    assert main(["validate", str(log), str(run / "run"), "--out", str(tmp_path / "v")]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "v" / "validation.md").read_text(encoding="utf-8")
    data = json.loads((tmp_path / "v" / "validation.json").read_text(encoding="utf-8"))
    assert data["sound"] is True and data["requests"] == 60
    assert abs(data["metrics"]["latency"]["mean"]["error_percent"]) < 1e-3
    assert main(["validate", str(log), str(run / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == data


def test_plots(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["validate", str(run / "out.csv"), str(run / "run"), "--plots", str(tmp_path)]) == 0
    assert all(
        (tmp_path / name).stat().st_size > 10_000 for name in ("cdf.png", "scatter.png", "time.png")
    )


def test_matplotlib_is_imported_for_plots_only(run: Path) -> None:
    code = (
        "import sys; from llmsim.cli import main; "
        f"assert main(['validate', {str(run / 'out.csv')!r}, {str(run / 'out.csv')!r}]) == 0; "
        "assert not {'matplotlib', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone", "gone"], "gone: cannot be read"),
        (["{csv}", "{csv}", "--skip-seconds", "-1"], "--skip-seconds"),
        (["{csv}"], "OUTPUT"),
    ],
)
def test_errors_of_one_sentence(
    arguments: list[str], words: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["validate", *(argument.format(csv=run / "out.csv") for argument in arguments)]) == 2
    )
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_recorded_arrivals_replace_the_traces(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(run / "out.csv")
    for row, late in ((rows[3], 300_000_000), (rows[40], 7)):  # one of them overtakes others
        for name in ("arrival", "end_time"):
            row[name] = str(int(row[name]) + late)
    log = write_engine_log(rows, tmp_path / "log.jsonl")
    simulate("--arrivals", log, "--output", tmp_path / "new.csv")
    new = rows_of(tmp_path / "new.csv")
    first = min(int(row["arrival"]) for row in rows)
    shift = [int(a["arrival"]) - int(b["arrival"]) + first for a, b in zip(new, rows, strict=True)]
    assert max(map(abs, shift)) <= 1000  # epoch seconds in a float hold no more
    assert [row["input"] for row in new] == [row["input"] for row in rows]
    assert np.isclose(
        read_recording(tmp_path / "new.csv").output_throughput,
        read_recording(log).output_throughput,
        rtol=0.1,
    )
    assert (
        run_main(
            run_arguments(
                "--arrivals", log, dataset="synthetic:n=61,rate=8,input=fixed:3,output=fixed:3"
            )
        )
        == 2
    )
    assert "has no request" in capsys.readouterr().err


def test_ablation_script(run: Path, tmp_path: Path) -> None:
    log = write_engine_log(rows_of(run / "out.csv"), tmp_path / "log.jsonl")
    script = ROOT / "evaluation" / "ablation.py"
    terms = ["--term", "async_lag", "--term", "decode_skew"]
    done = subprocess.run(
        [sys.executable, str(script), str(log), *terms, *run_arguments()],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and lines[2].startswith("| all terms |")
    assert lines[3].startswith("| no async_lag |") and "=" not in lines[3]
    assert lines[4].endswith("= |")  # a roofline has no skew to take away
