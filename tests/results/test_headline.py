"""The headline of a run: the answer first, in at most eight lines."""

import re
from pathlib import Path

import pytest

import llmsim
from llmsim.cli import main
from llmsim.core import Note, Severity
from llmsim.results.printed.headline import MOST_LINES, NARROW, decisive_notes, render_headline
from llmsim.results.summary import summary

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
TRACE = ROOT / "dataset" / "example_10.jsonl"
ARGUMENTS = ["run", "--cluster-config", str(CLUSTER), "--dataset", str(TRACE)]
ARGUMENTS += ["--cost-source", "roofline"]


@pytest.mark.parametrize("styled", [False, True])
def test_it_has_at_most_eight_lines_and_the_figures(build, info, styled):
    found = summary(build(100), info)
    text = render_headline(found, rich_terminal=styled)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert ("\x1b[" in text) == styled
    assert len([line for line in bare.splitlines() if line[:1].strip()]) <= MOST_LINES
    assert f"{found['completed']} of {found['workload']['requests']} requests" in bare
    for name in ("ttft", "tpot", "e2el"):
        value = found[f"p99_{name}_ms"]
        assert (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") in bare
    sources = found["sources"]["by_provenance"]
    known = 100 * (sources["measured"] + sources["interpolated"])
    assert f"{known:.1f} % measured or interpolated" in bare and "-v: memory" in bare
    too_long = [line for line in bare.splitlines() if len(line) > 80 and line[:4] != "Note"]
    assert styled or not too_long


def test_notes_are_shown_where_they_change_a_decision(build):
    results = build(30, finished_share=0.5)
    results.notes = (
        "decode batches of unequal lengths cost as much as equal ones",
        Note("the load is above what the cluster serves: requests arrive at 9/s"),
        Note("a source that is good to know", Severity.DETAIL),
        Note("kv_transfer changes nothing: no instance has a pd_type"),
    )
    results.interrupted = True
    results.invariants = {"4 blocks": "3 blocks are lost"}
    found = summary(results, {})
    text = render_headline(found, rich_terminal=False)
    assert len(text.splitlines()) == MOST_LINES
    assert len(decisive_notes(found)) == 2
    assert "the run was interrupted" in text and "more, -v lists them" in text
    assert "unequal lengths" not in text and ", 3 notes;" in text
    assert "Cost:" not in text  # the least important line went


def test_links_that_are_not_used_change_a_decision_where_they_are_others() -> None:
    """Measured collectives are those of NVLink: a file with a thousandth of it is told so."""
    pytest.importorskip("aiconfigurator_core", reason="collectives are the silicon database's")
    load = "synthetic:n=2,rate=2,input=100,output=4,seed=1"
    for link_gb_per_s, decides in ((450, False), (300, False), (0.45, True), (5000, True)):
        fields = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", tp=2).fields()
        found = llmsim.run({**fields, "link_bw": link_gb_per_s}, load).summary
        said = [note for note in decisive_notes(found) if "link_bw and link_latency" in note]
        assert bool(said) == decides


def test_missing_values_are_dashes(build):
    text = render_headline(summary(build(30, finished_share=0.0), {}), rich_terminal=False)
    assert re.search(r"^TTFT: +p50 +- +p90 +- +p99 +- ", text, re.MULTILINE)
    assert "nan" not in text.lower()


def test_intervals_leave_the_lines_within_a_narrow_terminal() -> None:
    pytest.importorskip("aiconfigurator_core", reason="intervals are those of the silicon database")
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100")
    load = "synthetic:n=300,rate=9,input=lognormal:1000,output=lognormal:200,seed=1"
    found = llmsim.run(cluster, load, goodput="ttft:500,tpot:30").summary
    text = render_headline(found, rich_terminal=False)
    assert "(" in text.splitlines()[0], "has intervals"
    assert max(map(len, text.splitlines())) <= NARROW, text


def test_verbose_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS) == 0
    headline = capsys.readouterr().out
    assert headline.startswith("Served:") and len(headline.splitlines()) <= MOST_LINES
    assert main([*ARGUMENTS, "-v"]) == 0
    details = capsys.readouterr().out
    assert details.startswith("Memory per device, group 0") and "Latency by cause:" in details
    assert main([*ARGUMENTS, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*ARGUMENTS, "--quiet", "--json", "--log-level", "INFO"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{") and err == ""
    assert main([*ARGUMENTS, "--quiet", "-v"]) == 2
    assert "exclude each other" in capsys.readouterr().err
