"""The Python examples of docs/reference/python.md and README.md run as they are printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE + README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiconfigurator_core", reason="the examples take the silicon database")
    pytest.importorskip("matplotlib", reason="the examples draw")
    for name in ("cluster_config", "dataset"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "outputs").mkdir()
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLES[number], {})
    assert capsys.readouterr().out


def test_the_readme_shows_every_question() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for call in ("llmsim.run(", "llmsim.size(", ".why(", "llmsim.diff(", "llmsim.report("):
        assert call in example


def test_the_page_names_every_method_of_a_result() -> None:
    from llmsim import Result

    public = {name for name in vars(Result) if not name.startswith("_")}
    assert {name for name in public if name not in PAGE} == set()
