"""Every command of the documentation that needs nothing but what is bundled runs as it is printed,
and ends with 0.
"""

import os
import re
from pathlib import Path

import pytest

from llmsim.cli import main
from tests.test_documents import PAGES, ROOT, commands

FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
BUNDLED = ("cluster_config", "dataset")
NOT_OURS = re.compile(
    r"my_|my-|\.\.\.|[<>|]|^LOG$|NAME|on_a_topology|^log/|log\.jsonl|means|^(one|two)\.json|^sweep/|candidate"
)
"""Words of commands that stand for something of the reader's own, or that a script of the page
writes.
"""
ELSEWHERE = {
    "docs/how-to/external_simulators.md",
    "docs/how-to/extending/cost_sources.md",
    "docs/how-to/extending/policies.md",
    "docs/how-to/extending/rankings.md",
    "docs/how-to/extending/routers.md",
    "docs/how-to/extending/schedulers.md",
    "docs/how-to/emulate.md",
    "docs/how-to/serve.md",
    "docs/tutorial/first_half_hour.md",
    "docs/tutorial/sizing.md",
}
"""Pages whose commands have tests of their own, which look at what they print."""
SEARCHES = ("size", "search")
"""Commands that take seconds: one that several pages print runs for the first of them."""
RUNNABLE = [
    page for page in PAGES if str(page.relative_to(ROOT)) not in ELSEWHERE and list(commands(page))
]


def ours(words: list[str]) -> bool:
    """Whether a command needs bundled files only."""
    return not any(
        NOT_OURS.search(word) for word in words if "|" not in word or "synthetic" not in word
    )


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "aiconfigurator_core", reason="most commands take the silicon database's times"
    )
    for folder in BUNDLED:
        os.symlink(ROOT / folder, tmp_path / folder)
    for name, text in FILE.findall(page.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = [words for other in RUNNABLE[: RUNNABLE.index(page)] for words in commands(other)]
    for words in filter(ours, commands(page)):
        if words[0] in SEARCHES and words in before:
            continue
        if "--timeline" in words:
            pytest.importorskip("perfetto", reason="timelines need the extra")
        assert main(words) == 0, (words, capsys.readouterr().err)


def test_most_commands_are_run() -> None:
    """A pattern too broad above would leave nothing to test."""
    found = [words for page in RUNNABLE for words in commands(page)]
    assert sum(map(ours, found)) > 30
