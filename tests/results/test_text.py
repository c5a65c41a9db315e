"""The summary on one screen, plain and styled, and the heartbeat."""

import re

import pytest

from llmsim.results.printed.text import heartbeat, render_summary
from llmsim.results.summary import summary


@pytest.mark.parametrize("styled", [False, True])
def test_it_fits_one_screen_and_shows_the_figures(build, info, styled):
    found = summary(build(100), info)
    del found["kv_offloading"]  # two more lines, which no run has together with all others here
    text = render_summary(found, rich_terminal=styled)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert ("\x1b[" in text) == styled
    assert len(text.splitlines()) <= 32
    assert f"{found['duration']:.3f}" in bare
    assert f"{found['output_throughput']:.2f}" in bare
    for name in ("mean_ttft_ms", "p99_itl_ms", "std_e2el_ms", "median_queueing_delay_ms"):
        assert f"{found[name]:.3f}" in bare
    for word in ("bundle 60.0 %", "measured 60.0 %", "2 checked, all hold", "from the costs"):
        assert word in bare


def test_plain_lines_are_label_and_value(build, info):
    for line in render_summary(summary(build(100), info), rich_terminal=False).splitlines():
        assert re.match(r"[A-Z][^:]*: +\S", line), line


def test_missing_values_and_warnings_show(build):
    results = build(30, finished_share=0.0)
    results.interrupted = True
    results.invariants = {"4 blocks": "3 blocks are lost"}
    text = render_summary(summary(results, {}), rich_terminal=False)
    assert re.search(r"^TTFT: +-( +-){5}$", text, re.MULTILINE)
    assert "4 blocks: 3 blocks are lost" in text
    assert text.count("Warning:") == 2
    assert "nan" not in text.lower()


def test_long_lists_are_cut(build):
    results = build(30, groups=40)
    results.notes = tuple(f"note {number}" for number in range(50))
    assert len(render_summary(summary(results, {}), rich_terminal=False).splitlines()) < 45


def test_sources_are_shown_by_database_bundle_or_table(build):
    found = summary(build(30), {})
    found["sources"]["by_source"] = {
        "profile bundle A6000/m/tp1": 0.4,
        "profile bundle A6000/m/tp1/layers.csv, expected active experts": 0.3,
        "cost table t.csv (simulated)": 0.2,
        "cost table t.csv (simulated), n=8 k=4 from other shapes": 0.1,
    }
    text = render_summary(found, rich_terminal=False)
    assert "Time by source: " in re.sub(" +", " ", text)
    assert "profile bundle A6000/m/tp1 70.0 %, cost table t.csv (simulated) 30.0 %" in text


def test_markup_in_names_is_text(build):
    results = build(30)
    results.notes = ("trace[bold].jsonl: [/red] is odd",)
    assert "trace[bold].jsonl: [/red] is odd" in render_summary(
        summary(results, {}), rich_terminal=True
    )


def test_heartbeat():
    row = {
        "time_ps": 20 * 10**12,
        "group": 1,
        "running": 7,
        "waiting": 2,
        "kv_blocks_used": 25,
        "kv_blocks_cached": 9,
        "prompt_tokens": 1000,
        "generation_tokens": 500,
        "hit_tokens": 1,
        "queried_tokens": 4,
        "preemptions": 0,
    }
    line = heartbeat(row, interval_ps=10 * 10**12, total_blocks=101)
    assert line == (
        "[      20.0 s] group 1: prompt 100.0 tok/s, generation 50.0 tok/s, "
        "running 7, waiting 2, KV 25.0 %, prefix hits 25.0 %"
    )
    idle = heartbeat({**row, "queried_tokens": 0}, interval_ps=0, total_blocks=1)
    assert "prompt 0.0 tok/s" in idle
    assert idle.endswith("prefix hits -")
