"""What a newcomer gets almost right: the answer is one sentence with what would have worked."""

from pathlib import Path

import pytest

from llmsim.cli import main

CLUSTERS = Path(__file__).resolve().parents[2] / "cluster_config"
SHORT = "synthetic:n=4,rate=1,input=fixed:9,output=fixed:9"
EAGLE = '{"method": "eagle3", "num_speculative_tokens": 3}'
PLAIN = str(CLUSTERS / "h100_llama31_8b.json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["examples", "run", "h100_llama31_8"], '(did you mean "h100_llama31_8b"?)'),
        (
            ["config", "explain", PLAIN, "--field", "tp_size"],
            '(did you mean "nodes[0].instances[0].tp_size"?); without --field all are listed',
        ),
        (["trace", "inspect", PLAIN], ":1:1: a cluster file, as --cluster-config takes it, and no"),
        (["trace", "inspect", "commented.json"], "commented.json:1:1: a cluster file"),
        (["trace", "inspect", "synth"], "a generator is written as synthetic:n=1000,rate=10,input"),
        (["init", "-o", "c.json", "--model", "llama", "--device", "H100"], "such as meta-llama/"),
        (
            ["run", "--cluster-config", PLAIN, "--dataset", SHORT, "--power-cap", "500"],
            "the cluster file has it as `power_cap` in the `power` of a node",
        ),
        (
            ["run", "--cluster-config", PLAIN, "--dataset", f"{SHORT},sessions=2"],
            "synthetic:reasoning,n=60,rate=1 generates sessions of several rounds",
        ),
        (
            ["run", "--cluster-config", PLAIN, "--dataset", SHORT, "--speculative-config", EAGLE],
            "acceptance_rate is missing: give exactly one of acceptance_rate, synthetic_",
        ),
        (["export", "absent", "--format", "vllm_bench", "-o", "x"], '(did you mean "vllm-bench"?)'),
        (["run", "--cluster-config", PLAIN], "--dataset is missing; it names the trace (see "),
    ],
)
def test_one_sentence_says_what_would_have_worked(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("commented.json").write_text("// One H100.\n{}\n", encoding="utf-8")
    assert main(words) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert said in found.err and found.err.count("\n") == 1
    assert len(found.err) < 500


def test_a_refused_run_leaves_no_folder_of_its_own(tmp_path: Path) -> None:
    """A folder that is there stays, with what it holds."""
    refused = ["run", "--cluster-config", PLAIN, "--dataset", f"{SHORT},sessions=2"]
    there = tmp_path / "there"
    there.mkdir()
    for folder in (tmp_path / "new", there):
        graphs = f"{folder}_graphs:slowest=1"
        assert main([*refused, "--run-dir", str(folder), "--graphs", graphs]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    words = ["run", "--cluster-config", PLAIN, "--dataset", SHORT, "--quiet"]
    assert main([*words, "--run-dir", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "manifest.json").exists()
