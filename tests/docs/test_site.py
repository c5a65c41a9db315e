"""The documentation as a site: notebooks run, pictures are current, code blocks work."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from package import package_sources

from llmsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SERVING = sorted((DOCS / "how-to" / "serving").glob("*.md"))
TUTORIAL = DOCS / "tutorial" / "first_half_hour.md"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _silicon() -> None:
    pytest.importorskip("aiconfigurator_core", reason="the examples take the silicon database")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_kept_without_outputs(path: Path) -> None:
    import json

    from docs.site import notebooks

    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    shown = [
        bool(cell.printed or cell.pictures or cell.value is not None)
        for cell in notebooks.execute(path)
        if cell.kind == "code"
    ]
    assert shown and all(shown)


def test_pictures_are_those_of_this_version() -> None:
    """Equal but for the last digits of coordinates where the same matplotlib drew them; elsewhere
    every picture is still drawn.
    """
    import matplotlib

    from docs.site import gallery

    for name in gallery.PICTURES:
        committed = (gallery.FOLDER / f"{name}.svg").read_bytes()
        drawn = gallery.draw(name)
        if f"Matplotlib v{matplotlib.__version__}".encode() in committed:
            (text, numbers), (known_text, known_numbers) = _parts(drawn), _parts(committed)
            assert text == known_text, f"python -m docs.site.gallery {name}"
            assert numbers == pytest.approx(known_numbers, abs=2e-6, rel=0), name


def _parts(svg: bytes) -> tuple[list[str], list[float]]:
    """What stands between the numbers of a picture, and the numbers, which have six digits."""
    number = r"-?\d+\.\d+"
    text = svg.decode()
    return re.split(number, text), [float(one) for one in re.findall(number, text)]


def test_every_picture_is_on_the_gallery_page() -> None:
    from docs.site import gallery

    page = (DOCS / "tutorial" / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"pictures/(\w+)\.svg", page))
    assert shown == set(gallery.PICTURES) == {path.stem for path in gallery.FOLDER.glob("*.svg")}


@pytest.mark.parametrize("path", [*SERVING, TUTORIAL], ids=lambda path: path.stem)
def test_python_of_a_page_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = PYTHON.findall(path.read_text(encoding="utf-8"))
    for example in examples:
        exec(example, {"__name__": "__main__"})
        assert capsys.readouterr().out
    if not examples:
        pytest.skip("the page has no Python")


def test_the_tutorial_prints_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command runs in an empty folder, and the printed outputs stand on the page."""
    from tests.test_documents import commands

    monkeypatch.chdir(tmp_path)
    page = TUTORIAL.read_text(encoding="utf-8")
    printed = ""
    for words in commands(TUTORIAL):
        capsys.readouterr()
        assert main(words) == 0, words
        printed += capsys.readouterr().out
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert block in printed
    for metric, change in (("p99_tpot_ms", r"-26\."), ("mean_ttft_ms", r"\+1[0-9]{2}\.")):
        assert re.search(rf"^{metric} .*{change}", printed, re.MULTILINE), metric
    assert re.search(r"-69%  2 instances instead of 1", printed)


def test_the_navigation_follows_the_index() -> None:
    from docs.site.hooks import OUTSIDE, navigation

    tabs = navigation((DOCS / "README.md").read_text(encoding="utf-8"))
    assert [next(iter(tab)) for tab in tabs] == ["Tutorials", "How-to", "Reference", "Explanation"]
    listed: list[str] = []

    def walk(entry: Any) -> None:
        for value in entry.values():
            if isinstance(value, str):
                listed.append(value)
            for below in value if isinstance(value, list) else ():
                walk(below)

    for tab in tabs:
        walk(tab)
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    pages |= {f"notebooks/{path.stem}.md" for path in NOTEBOOKS} | set(OUTSIDE.values())
    assert sorted(listed) == sorted(pages)


def test_extras_of_the_documentation_exist() -> None:
    """An extra that a page, an error or `llmsim doctor` names is one that pip knows."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        extras = set(tomllib.load(stream)["project"]["optional-dependencies"])
    named: set[str] = set()
    for path in [*DOCS.rglob("*.md"), ROOT / "README.md", *package_sources().rglob("*.py")]:
        named |= set(re.findall(r"llmsim\[(\w+)\]", path.read_text(encoding="utf-8")))
    assert named <= extras
