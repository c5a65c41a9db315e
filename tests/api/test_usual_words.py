"""Tables and options take the words that a notebook's author tries first."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmsim

CLUSTER = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100")
OURS = pd.DataFrame(
    {"arrival_s": [0.0, 0.5, 2.0], "input_tokens": [64, 128, 96], "output_tokens": [4, 8, 6]}
)


def times(workload: Any, **options: Any) -> list[int]:
    found = llmsim.run(CLUSTER, workload, cost_source="roofline", **options).requests
    return [*found["arrival_ps"], *found["finish_ps"]]


@pytest.mark.parametrize(
    "names",
    [
        ("arrival", "input", "output"),
        ("timestamp", "isl", "osl"),
        ("arrival_time", "prompt_tokens", "completion_tokens"),
        ("Arrival_s", "prompt_len", "output_tokens"),
    ],
)
def test_usual_names_of_columns(names: tuple[str, ...]) -> None:
    table = OURS.rename(columns=dict(zip(OURS.columns, names, strict=True)))
    assert times(table) == times(OURS)
    assert times(table.to_dict(orient="records")) == times(OURS)


def test_units_behind_a_name_and_dates() -> None:
    lengths = OURS[["input_tokens", "output_tokens"]]
    assert times(lengths.assign(arrival_us=OURS.arrival_s * 1e6)) == times(OURS)
    assert times(lengths.assign(timestamp_ms=OURS.arrival_s * 1e3)) == times(OURS)
    dates = pd.Timestamp("2026-03-01 12:00") + pd.to_timedelta(OURS.arrival_s, unit="s")
    assert times(lengths.assign(created_at=dates)) == times(OURS)


def test_our_names_win_and_other_columns_do_not_matter() -> None:
    assert times(OURS.assign(time=99.0, output=1, prompt_tokens=5, label="x")) == times(OURS)


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(llmsim.InputError, match="DataFrame:1: the arrival is given by none"):
        times(OURS.drop(columns="arrival_s"))
    with pytest.raises(llmsim.InputError, match="arrival_s and arrival_ms; give exactly one"):
        times(OURS.assign(arrival_ms=0.0))
    with pytest.raises(llmsim.InputError, match="output_tokens is missing"):
        times(OURS.rename(columns={"output_tokens": "answers"}))


def test_one_text_stands_for_a_list_of_texts() -> None:
    given = {"cost_source": "roofline", "disable_term": "host_gap", "goodput": "ttft:200,tpot:20"}
    lists = {**given, "disable_term": ["host_gap"], "goodput": ["ttft:200", "tpot:20"]}
    one, other = (llmsim.run(CLUSTER, OURS, **options).summary for options in (given, lists))
    assert one["goodput"] == other["goodput"] and one["goodput"]["targets_ms"]["tpot"] == 20
    assert one["mean_ttft_ms"] == other["mean_ttft_ms"]


def test_a_comparison_is_short_until_it_is_printed(tmp_path: Any) -> None:
    result = llmsim.run(CLUSTER, OURS, cost_source="roofline")
    result.to_vllm_bench(tmp_path / "log.json")
    found = llmsim.validate(tmp_path / "log.json", result, skip_seconds=0)
    assert repr(found).startswith(
        "Comparison of 3 requests, simulated minus real: mean ttft +0.0 %"
    )
    assert len(repr(found)) < 200 and "| metric |" in str(found)
    assert "| metric |" in found._repr_html_()


def test_a_missing_trace_is_the_file_of_its_error() -> None:
    with pytest.raises(llmsim.InputError) as caught:
        times("no_such.jsonl")
    assert str(caught.value.file) == "no_such.jsonl"


def test_numpy_scalars_are_options() -> None:
    plain = times(OURS, max_num_seqs=1, enable_prefix_caching=False)
    assert times(OURS, max_num_seqs=np.int64(1), enable_prefix_caching=np.bool_(False)) == plain
    with pytest.raises(llmsim.InputError, match=r"^max_num_seqs is 1\.5"):
        times(OURS, max_num_seqs=np.float64(1.5))


def test_durations_are_arrivals_and_numbers_are_names() -> None:
    seconds = pd.to_timedelta(OURS["arrival_s"], unit="s")
    assert times(OURS.assign(arrival_s=seconds)) == times(OURS)
    result = llmsim.run(CLUSTER, OURS.assign(request_id=[7, 8, 9]), cost_source="roofline")
    assert list(result.requests["request_id"]) == ["7", "8", "9"]


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (pd.concat([OURS, OURS[["input_tokens"]]], axis=1), "2 columns are named input_tokens"),
        (OURS.rename(columns={"arrival_s": 0}), "a column is named 0; give each column a text"),
        (pd.concat({"a": OURS}, axis=1), r"a column is named \('a', 'arrival_s'\)"),
        (np.ones((3, 3)), "workload holds a ndarray; give llmsim.Request objects or mappings"),
    ],
)
def test_tables_that_are_none_are_refused(workload: Any, words: str) -> None:
    with pytest.raises(llmsim.InputError, match=words) as caught:
        times(workload)
    assert caught.value.field == "workload"
