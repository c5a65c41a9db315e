"""Switches that a class in Python decides, and switches as a cause of latency."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim.config.errors import InputError
from llmsim.results.printed.headline import render_headline

ROLLOUT = "synthetic:rollout,n=64,groups=8,output=fixed:40,tail=0.125,tail_output=fixed:400,seed=1"


def instance(count: int, tp: int) -> dict[str, Any]:
    return {
        "count": count, "model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100", "tp_size": tp,
    }  # fmt: skip


def cluster(**more: Any) -> dict[str, Any]:
    return {
        "link_bw": [450, 450, 50],
        "link_latency": [1000, 1000, 2000],
        "layouts": {"many": [instance(4, 1)], "wide": [instance(1, 4)]},
        **more,
    }


def run(fields: dict[str, Any]) -> llmsim.Result:
    return llmsim.run(fields, ROLLOUT, cost_source="roofline")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deciding.py").write_text(
        "class Few:\n"
        "    def __init__(self, below=9):\n"
        "        self.below, self.most = below, 0\n"
        "    def decide(self, now_ps, groups):\n"
        "        held = sum(one.running + one.waiting for one in groups)\n"
        "        self.most = max(self.most, held)\n"
        "        return 'wide' if held < self.below <= self.most else 'many'\n"
        "class Unknown:\n"
        "    def decide(self, now_ps, groups):\n"
        "        return 'wid'\n"
        "class Broken:\n"
        "    def decide(self, now_ps, groups):\n"
        "        return 1 // 0\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plugins")
def test_a_class_decides_like_a_trigger() -> None:
    """Each group has 16 requests, of which 8 in all are long: the share of open ones is 8 / 64."""
    decided = run(cluster(decide="deciding:Few:below=9"))
    [row] = decided.summary["reconfigurations"]
    assert (row["trigger"], row["to"], row["requests"]) == ("decide", "wide", 8)
    [told] = run(cluster(switch=[{"to": "wide", "when": {"active_share_below": 9 / 64}}])).summary[
        "reconfigurations"
    ]
    assert {**told, "trigger": "decide"} == row
    again = run(cluster(decide="deciding:Few:below=9"))  # with an object of its own
    assert again.requests.equals(decided.requests)


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deciding:Unknown", "gave 'wid' .did you mean \"wide\"..; it may be None or many, wide"),
        ("deciding:Broken", "deciding:Broken failed: ZeroDivisionError: .*deciding.py:1"),
        ("deciding:None", "decide: reconfiguration deciding:None: deciding has no None"),
        ("Few", 'decide is "Few"; it may be a class such as'),
    ],
)
def test_what_cannot_decide(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(cluster(decide=name))


def test_why_names_the_switch_and_tests_layouts_that_stay(tmp_path: Path) -> None:
    result = run(
        cluster(
            switch=[{"to": "wide", "when": {"tail": {"finished_share_above": 0.8}}}],
            reconfiguration={"process_s": 3},
        )
    )
    found = result.why("e2el", 95)
    assert found.causes[0].name == "switch of layouts"
    changes = {one.change: one.after for one in found.what_ifs}
    wide = run({**cluster(), "initial": "wide"})
    assert changes["the layout wide for the whole run"] == pytest.approx(
        float(wide.requests["e2el_ps"].quantile(0.95)) / 1e9
    )
    assert changes["twice the devices in every layout"] is not None
    blame = found.to_dict()["blame"]["after_first_token"]
    assert blame["reconfigure"]["slowest_ms"] > 3000 > blame["reconfigure"]["all_ms"] > 0
    assert "switch of layouts" in str(found)


def test_the_headline_counts_switches_and_why_counts_equal_requests() -> None:
    result = run(cluster(switch=[{"to": "wide", "when": {"active_share_below": 9 / 64}}]))
    assert ", 1 switch\n" in render_headline(result.summary, rich_terminal=False)
    stays = run(cluster())
    assert "switch" not in render_headline(stays.summary, rich_terminal=False)
    ttft_ps = stays.requests["ttft_ps"]
    equal = int((ttft_ps >= np.percentile(ttft_ps, 99)).sum())
    first = str(stays.why("ttft", what_if=0)).splitlines()[0]
    assert equal > 2 and f"; the slowest are the {equal} of 64 requests that have it" in first
