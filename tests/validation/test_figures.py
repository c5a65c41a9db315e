"""The figure scripts run from anywhere, keep logs, results and tables, and say what failed instead
of stopping.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
EVALUATION = Path(__file__).resolve().parents[2] / "evaluation"


def script(name, *arguments, cwd):
    return subprocess.run(
        ["sh", str(EVALUATION / name), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_figure_and_its_comparison(tmp_path):
    done = script("figure_9.sh", "--output", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "figure_9"
    assert (folder / "figure_9.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "logs" / "TPU-v6e.log").read_text().startswith("$ ")
    assert (folder / "results" / "TPU-v6e" / "manifest.json").exists()
    rows = [
        line.split("\t")
        for line in (folder / "parsed" / "TPU-v6e_throughput.tsv").read_text().splitlines()
    ]
    assert rows[0] == ["time_s", "throughput"]
    csv = (folder / "results" / "TPU-v6e.csv").read_text().splitlines()
    generated = sum(float(row[1]) for row in rows[1:])
    assert generated == pytest.approx(300 * 278, rel=0.2)
    assert len(csv) == 301
    shown = script("compare.sh", 9, "--output", tmp_path, cwd=tmp_path)
    assert shown.returncode == 0
    assert "operator times" in shown.stdout


def test_what_was_not_made_is_said(tmp_path):
    shown = script("compare.sh", "figure_6", "--output", tmp_path, cwd=tmp_path)
    assert shown.returncode == 1
    assert "figure_6.sh" in shown.stderr


@pytest.mark.parametrize("arguments", [["4"], ["5", "--artifact", "no-such-folder"]])
def test_bad_arguments_are_one_sentence(arguments, tmp_path):
    done = script("figures.sh", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_run_that_fails_is_an_outcome(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EVALUATION))
    from figures.runs import Run, Workspace

    outcome = Workspace(tmp_path).execute(
        Run("x", "x", tmp_path / "absent.json", "synthetic:n=1,rate=1")
    )
    assert outcome.failure.startswith("exit code 2: llmsim: error: ")
    assert "absent.json" in outcome.failure
    assert outcome.remark == f"x: not run ({outcome.failure})"
    assert "absent.json" in (tmp_path / "logs" / "x.log").read_text()


def test_errors_are_of_the_reference(monkeypatch):
    monkeypatch.syspath_prepend(str(EVALUATION))
    from figures.report import Comparison

    assert Comparison("x", 110.0, 100.0, "s").error_percent == pytest.approx(10.0)


def test_a_whole_copy_of_the_artifact_is_found_by_its_own_names(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EVALUATION))
    from figures.runs import Workspace

    card, series = "figure_5/A6000", "MD_throughput.tsv"
    files = {
        f"{card}/reference/{series}": f"evaluation/{card}/reference/{series}",
        f"{card}/peer/{series}": f"evaluation/artifacts/{card}/parsed/{series}",
        "perf_models": "llm_profile/perf_models/A6000/x.csv",
        "dataset/x.jsonl": "dataset/x.jsonl",
    }
    for stored in files.values():
        (tmp_path / stored).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stored).write_text("x")
    work = Workspace(tmp_path / "work", tmp_path)
    for asked, stored in files.items():
        found = work.of_artifact(asked)
        assert found is not None and str(tmp_path / stored).startswith(str(found))
    assert work.of_artifact("figure_9/reference") is None


def test_figures_take_the_profiles_of_the_artifact(tmp_path, monkeypatch):
    """Figures 5 and 8 on H100, figure 9 on the TPU; without them, the silicon database and the data
    sheet.
    """
    monkeypatch.syspath_prepend(str(EVALUATION))
    from figures import figure_5, figure_8, figure_9
    from figures.runs import Workspace

    without, copy = Workspace(tmp_path / "work"), tmp_path / "artifact"
    for hardware in ("A6000", "H100", "TPU-v6e-1"):
        (copy / "perf_models" / hardware).mkdir(parents=True)
    work = Workspace(tmp_path / "work", copy)
    profiles = ("--profile-dir", str(copy / "perf_models"))
    for figure in (figure_5, figure_8):
        for run in figure.runs(work):
            assert run.options[run.options.index("--profile-dir") :][:2] == profiles, run.name
            assert "silicon" not in run.options
        assert all(
            "silicon" in run.options for run in figure.runs(without) if run.name.startswith("H100")
        )
    (run,) = figure_9.runs(work)
    assert run.options[run.options.index("--profile-dir") :][:2] == profiles
    assert run.cluster["nodes"][0]["instances"][0]["hardware"] == "TPU-v6e-1"
    assert "--profile-dir" not in figure_9.runs(without)[0].options
    own = {"figure_5/H100/config": ("SD", "MD"), "figure_9/config": ("SD",)}
    for folder, names in own.items():
        (copy / folder).mkdir(parents=True)
        for name in names:
            (copy / folder / f"{name}_config.json").write_text("{}", encoding="utf-8")
    assert figure_9.runs(work)[0].cluster == copy / "figure_9/config/SD_config.json"
    by_name = {run.name: run.cluster for run in figure_8.runs(work)}
    assert by_name["H100_MD"] == copy / "figure_5/H100/config/MD_config.json"
    assert by_name["H100_SM"]["nodes"], "no such file"


def test_the_processors_of_figure_6_are_those_of_its_configurations(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EVALUATION))
    from figures import figure_6
    from figures.runs import Workspace

    shares = [
        run.cluster["nodes"][0]["power"]["cpu"]["util"]
        for run in figure_6.runs(Workspace(tmp_path))
    ]
    assert shares == [0.5, 0.7]


def test_the_page_of_accuracy_is_not_written_without_a_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EVALUATION))
    import accuracy_memory
    from figures.report import FigureReport
    from figures.runs import Outcome, Run

    from llmsim.config.errors import InputError

    run = Run("TP1", "tensor parallelism 1", {}, "synthetic:n=1,rate=1")
    failed = Outcome(run, failure="exit code 3: no memory")
    reports = {5: [], 6: ["mean power 500 W", failed.remark], 7: []}
    for number, remarks in reports.items():
        module = getattr(accuracy_memory, f"figure_{number}")
        report = partial(FigureReport, number, "a figure", remarks=remarks)
        monkeypatch.setattr(module, "build", lambda work, report=report: report())
    (tmp_path / "artifact" / "perf_models" / "A6000").mkdir(parents=True)
    with pytest.raises(InputError, match=r"figure 6: tensor parallelism 1: not run \(exit code 3"):
        accuracy_memory.figures(tmp_path)
    reports[6].pop()
    assert "mean power 500 W" in accuracy_memory.figures(tmp_path)


def test_published_numbers_agree_with_each_other(monkeypatch):
    monkeypatch.syspath_prepend(str(EVALUATION))
    from figures import published

    for name, real in published.H100_REAL.items():
        assert set(published.OTHERS[name]) <= set(published.SIMULATION_S[name])
        for values in published.OTHERS[name].values():
            assert values[0] == pytest.approx(real.throughput, rel=0.4)
    errors = [
        abs(published.POWER_PEER_W[run] / real - 1) for run, real in published.POWER_REAL_W.items()
    ]
    assert 100 * sum(errors) / 2 == pytest.approx(published.ENERGY_ERROR, abs=0.05)
