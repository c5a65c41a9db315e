"""The examples of external_simulators.md and cost_sources.md, executed as they are printed."""

import json
import re
import shlex
from pathlib import Path

import pytest

from llmsim.api.preparation.prepare import trial
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from tests.costs.builders import needs_database

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "how-to" / "external_simulators.md").read_text()
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
RUN = re.compile(r"<!-- run -->\n```sh\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file of the page, which is also the working directory."""
    for name, text in FILE.findall(PAGE):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(index: int) -> list[str]:
    """The words of one command of the page, without the name of the program."""
    words = shlex.split(RUN.findall(PAGE)[index].replace("\\\n", " "))
    assert words[0] == "llmsim"
    return words[1:]


def test_a_systolic_array(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(0)) == 0
    assert "8 rows" in capsys.readouterr().out
    lines = (folder / "systolic.csv").read_text().splitlines()
    assert lines[0] == "operator,device,tokens,n,k,latency_us,energy_uj,confidence,kind"
    assert (
        lines[1] == "qkv_proj,systolic.json,1,6144,4096,26.4,,1,simulated"
    )  # 26,400 cycles at 1 GHz
    show = [
        "times",
        "show",
        "meta-llama/Llama-3.1-8B",
        "systolic.json",
        "--cost-table",
        "systolic.csv",
    ]
    assert main(show) == 0
    table = {
        line.split()[0]: line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.strip()
    }
    assert table["qkv_proj"][2] == "26.4"
    assert table["down_proj"][2] == "61.1"
    assert "systolic.csv" in " ".join(table["gate_up_proj"])
    assert "data" in " ".join(table["layernorm"])  # the sheet has what the array does not


@needs_database
def test_processing_in_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(1)) == 0
    lines = (folder / "pim.csv").read_text().splitlines()
    assert lines[1] == "decode,H100,1,512,4.33333333,3.1,0.8,simulated"
    assert (
        main(["times", "show", "meta-llama/Llama-3.1-8B", "H100", "--cost-table", "pim.csv"]) == 0
    )
    text = capsys.readouterr().out
    assert "confidence 0.8" in text
    assert "only one phase" in text
    assert "aiconfigurator-core" in text  # matrices are still the card's


def test_an_unbuilt_accelerator(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command(2), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["completed"] == 20
    assert any(
        "sheet.json (analytic, confidence 0.5)" in source
        for source in summary["sources"]["by_source"]
    )
    assert main(command(2)) == 0
    assert "% analytic; " in (said := capsys.readouterr().out) and "% from cost tables" in said
    assert main([*command(2), "--require", "scaled"]) == 2
    error = capsys.readouterr().err
    assert "--require scaled" in error
    assert "tokens is analytic" in error


def test_by_its_data_sheet_alone(capsys: pytest.CaptureFixture[str]) -> None:
    without_table = command(2)[:-2]
    assert main([*without_table, "--json"]) == 0
    sources = json.loads(capsys.readouterr().out)["sources"]["by_source"]
    assert {name for name in sources if "of the host for each" not in name} == {
        "data sheet of Systolic-1"
    }


def test_a_cost_source_in_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "how-to" / "extending" / "cost_sources.md").read_text()
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "TwiceAsFast" in block
    )
    (folder / "my_costs.py").write_text(code)
    run = command(2)[:-2]
    assert main([*run, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*run, "--json", "--cost-source", "my_costs:TwiceAsFast"]) == 0
    fast = json.loads(capsys.readouterr().out)
    assert fast["mean_tpot_ms"] < plain["mean_tpot_ms"]
    assert fast["sources"]["by_source"]["my_costs.TwiceAsFast"] > 0.5


ANSWERS = """
import numpy as np
from llmsim.costs.source import Curve

class TwiceAsFast:
    def __init__(self, request): pass
    def operator(self, op, last):
        marks = np.zeros(last + 1, np.uint8)
        return {}
    def attention(self, op): return {}
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class TwiceAsFast:\n    pass\n", "has no method operator(op, last)"),
        (
            "class TwiceAsFast:\n    def __init__(self, request): pass\n",
            "no method operator(op, last)",
        ),
        ("import nothing_here\n", "cannot be imported"),
        ("x = 1\n", "has no TwiceAsFast"),
        (
            "class TwiceAsFast:\n    def __init__(self, request): pass\n"
            "    def operator(self, op, last): return 1 / 0\n"
            "    def attention(self, op): return None\n",
            ".py:3)",
        ),
        (
            ANSWERS.format("{'ps': 1}", "None"),
            "the answer is of the type dict; a Curve or None was expected",
        ),
        (
            ANSWERS.format("Curve(np.full(last + 1, 5.5), marks, 'x')", "None"),
            "times are float64 and marks uint8; whole ps",
        ),
        (
            ANSWERS.format("Curve(np.zeros(last + 1, np.int64), marks[1:], 'x')", "None"),
            "times and marks, none negative",
        ),
        (
            ANSWERS.format("None", "5"),
            "the answer is of the type int; an AttentionCost or None was expected",
        ),
    ],
)
def test_a_broken_cost_source_ends_in_a_sentence(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    code: str,
    expected: str,
    request: pytest.FixtureRequest,
) -> None:
    name = f"broken_{abs(hash(code)) % 10**6}"
    (folder / f"{name}.py").write_text(code)
    assert main([*command(2)[:-2], "--cost-source", f"{name}:TwiceAsFast"]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "Traceback" not in error


def test_a_linear_blackbox(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "blis.json").write_text(json.dumps({"beta": [5000, 20, 10], "alpha": [1000, 0, 0]}))
    arguments = [
        "run",
        "--cluster-config",
        "cluster.json",
        "--json",
        "--cost-source",
        "blackbox:blis.json",
        "--dataset",
    ]
    assert (
        main(
            [*arguments, "synthetic:n=1,rate=1,input=100,output=3,seed=1", "--no-async-scheduling"]
        )
        == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["mean_ttft_ms"] == pytest.approx(
        1 + 5 + 100 * 0.020
    )  # alpha0, then one step of the prompt
    assert summary["mean_tpot_ms"] == pytest.approx(5 + 0.010)


def test_overheads_of_a_blackbox_are_the_clients(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """alpha1 by the prompt's length before the queue; alpha2 for each token, which no step waits
    for.
    """
    arguments = [
        "run",
        "--cluster-config",
        "cluster.json",
        "--json",
        "--cost-source",
        "blackbox:blis.json",
    ]
    arguments += [
        "--no-async-scheduling",
        "--dataset",
        "synthetic:n=4,rate=1,input=100,output=3,seed=1",
    ]
    found = []
    for alpha in ([1000, 0, 0], [1000, 2, 0], [1000, 2, 300]):
        (folder / "blis.json").write_text(json.dumps({"beta": [5000, 20, 10], "alpha": alpha}))
        assert main(arguments) == 0
        found.append(json.loads(capsys.readouterr().out))
        assert set(found[-1]["invariants"].values()) == {"ok"}
    assert found[0]["mean_ttft_ms"] == pytest.approx(1 + 5 + 100 * 0.020)
    assert found[1]["mean_ttft_ms"] == pytest.approx(1 + 100 * 0.002 + 5 + 100 * 0.020)
    assert found[2]["mean_ttft_ms"] == pytest.approx(1 + 100 * 0.002 + 5 + 100 * 0.020 + 0.3)
    assert found[1]["mean_tpot_ms"] == pytest.approx(5.010)
    assert found[2]["mean_tpot_ms"] == found[2]["mean_itl_ms"] == pytest.approx(5.310)
    assert found[2]["mean_e2el_ms"] == pytest.approx(found[1]["mean_e2el_ms"] + 3 * 0.3)
    assert any("alpha2" in note for note in found[2]["notes"])


def test_a_short_prompt_overtakes_a_long_one_on_its_way_to_the_queue(folder: Path) -> None:
    (folder / "blis.json").write_text(json.dumps({"beta": [5000, 0, 0], "alpha": [0, 1000, 0]}))
    trace = folder / "two.jsonl"
    rows = [
        {"input_toks": tokens, "output_toks": 1, "arrival_time_ns": at}
        for tokens, at in ((50, 0), (10, 1))
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        "--cluster-config",
        "cluster.json",
        "--dataset",
        str(trace),
        "--cost-source",
        "blackbox:blis.json",
    ]
    requests = trial(checked_options(options)).requests
    assert requests.queued_ps.tolist() == [50 * 10**9, 10 * 10**9 + 1000]
    assert requests.scheduled_ps[1] < requests.scheduled_ps[0]
