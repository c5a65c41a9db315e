"""What a newcomer gets almost right: the answer is one sentence with what would have worked."""

from pathlib import Path

import pytest

from llmsim.cli import main

CLUSTERS = Path(__file__).resolve().parents[2] / "cluster_config"
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
