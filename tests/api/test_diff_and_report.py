"""`llmsim.diff` and `llmsim.report`: the same answers as the commands of those names."""

import json
from pathlib import Path

import pytest

import llmsim
from llmsim.cli import main

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"


def run(seed: int = 1, **options: object) -> llmsim.Result:
    load = f"synthetic:n=80,rate=30,input=400,output=40,seed={seed}"
    return llmsim.run(CLUSTER, load, cost_source="roofline", **options)


def test_diff_is_that_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [(run(seed), run(seed, max_num_seqs=4)) for seed in (1, 2, 3)]
    for seed, both in enumerate(pairs):
        for name, result in zip("ab", both, strict=True):
            result.save(tmp_path / name / str(seed))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    table = llmsim.diff([a for a, _ in pairs], [b for _, b in pairs])
    assert list(table.index) == list(expected) and table.loc["mean_ttft_ms", "significant"]
    for name, one in expected.items():
        row = table.loc[name]
        found = [row["a"], row["b"], row["delta_pct"], row["ci_low"], row["ci_high"], row["p"]]
        wanted = [one["a"], one["b"], one["delta_pct"], *(one["ci"] or (None, None)), one["p"]]
        assert found == pytest.approx(wanted, abs=1e-5, nan_ok=True), name
    of_folders = llmsim.diff(tmp_path / "a" / "0", pairs[0][1])
    assert of_folders.loc["mean_ttft_ms", "a"] == pytest.approx(
        expected["mean_ttft_ms"]["a"], rel=1
    )


def test_a_run_does_not_differ_from_itself() -> None:
    table = llmsim.diff(run(), run())
    assert not table["significant"].eq(True).any() and (table["a"] == table["b"]).all()


def test_figures_of_whole_runs_are_those_of_their_summaries(tmp_path: Path) -> None:
    """Also where one run turned requests away that the other served, the first among them."""
    load = [llmsim.Request(0.0, 2_000_000, 5)]
    load += [llmsim.Request(1 + row / 1000, 4000, 40) for row in range(40)]
    with pytest.warns(UserWarning, match="can never run"):
        every = llmsim.run(CLUSTER, load, cost_source="roofline")
        some = llmsim.run(CLUSTER, load, cost_source="roofline", admission="QUEUE_LIMIT:requests=1")
    assert some.summary["refused"] > 0
    for name, result in (("every", every), ("some", some)):
        result.save(tmp_path / name)
    for table in (
        llmsim.diff(every, some),
        llmsim.diff(tmp_path / "every", tmp_path / "some"),
    ):
        for metric in ("duration", "request_throughput", "output_throughput"):
            assert table.loc[metric, "a"] == pytest.approx(every.summary[metric], rel=1e-5)
            assert table.loc[metric, "b"] == pytest.approx(some.summary[metric], rel=1e-5)


def test_diff_refuses_what_cannot_be_compared() -> None:
    result = run()
    with pytest.raises(llmsim.InputError, match="a holds 2 runs and b holds 1"):
        llmsim.diff([result, result], result)
    with pytest.raises(llmsim.InputError, match="alpha is 2"):
        llmsim.diff(result, result, alpha=2)


def test_a_report_names_its_runs(tmp_path: Path) -> None:
    wide, narrow = run(), run(max_num_seqs=4)
    llmsim.report({"wide": wide, "narrow": narrow}, tmp_path / "both.html", why="ttft")
    text = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "Report of wide, narrow" in text and "low limit of sequences" in text
    wide.save(tmp_path / "saved")
    llmsim.report([tmp_path / "saved"], tmp_path / "one.html", title="A <title>", why="tpot")
    assert "A &lt;title&gt;" in (tmp_path / "one.html").read_text(encoding="utf-8")
    with pytest.raises(llmsim.InputError, match=r"ends in \.html"):
        llmsim.report(wide, tmp_path / "one.txt")
