"""The documentation: links lead somewhere, commands exist with their options, the index lists every
page.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "cluster_config/README.md", "dataset/README.md")
    ),
    ROOT / "SECURITY.md",
    *(ROOT / name for name in ("astra-sim/README.md", "evaluation/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BUNDLED = ("cluster_config", "dataset", "docs", "evaluation", "llmsim", "tests")


def prose(page: Path) -> str:
    """The page without code, in which brackets and hashes mean something else."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"^ {4}.*$", "", text, flags=re.M)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    titles = re.findall(r"^#+ +(.+?) *$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command of ours, continuation lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^(?: {4}|\$ )?(?:\$ )?((?:python main\.py|llmsim) .*)$", text, re.M):
        words = shlex.split(line, comments=True)
        yield ["run", *words[2:]] if words[0] == "python" else words[1:]


def options_of(words: list[str]) -> set[str]:
    """The options of the command that `words` begin with; of those that take `run`'s
    as well, both.
    """
    from llmsim.cli.app import app

    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"no such command: {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    named = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return (
        named | options_of(["run"])
        if command.context_settings.get("ignore_unknown_options")
        else named
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_with_their_options_and_files(page: Path) -> None:
    for words in commands(page):
        known = options_of(words) if words[0] != "..." else options_of(["run"])
        for word in words[: words.index("--")] if "--" in words else words:
            if word.startswith("--"):
                assert word.partition("=")[0] in known, (word, words)
            elif word.partition("/")[0] in BUNDLED and "NAME" not in word and "..." not in word:
                assert (ROOT / word).exists(), (word, words)


def test_commands_and_links_are_found() -> None:
    assert all(
        list(commands(ROOT / name))
        for name in ("README.md", "docs/reference/graphs.md", "docs/explanation/parallelism.md")
    )
    assert all("](" in prose(page) for page in (ROOT / "README.md", ROOT / "docs" / "README.md"))


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[[^\]]+\]\(((?:[\w-]+/)*\w+\.md)\)", index, re.M)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages - {"README.md"})


def test_the_page_of_commands_is_current() -> None:
    """Otherwise: llmsim schema --commands > docs/reference/commands.md"""
    from llmsim.cli.commands_page import commands_page

    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert page == commands_page()


def test_pages_of_measurements_miss_no_run() -> None:
    """A run that fails while a page is generated would otherwise leave its sentence in the docs."""
    generated = [
        page
        for page in (ROOT / "docs" / "explanation").glob("*.md")
        if "enerated by `" in page.read_text(encoding="utf-8")
    ]
    assert len(generated) == 4
    for page in generated:
        text = page.read_text(encoding="utf-8")
        assert ": not run (" not in text, page.name
        assert "site-packages" not in text, page.name


def test_the_readme_has_every_exit_code() -> None:
    from llmsim.cli.commands.answers.size import NOTHING_MEETS
    from llmsim.cli.commands.recordings.conformance import DIFFERENT
    from llmsim.config import errors
    from llmsim.emulation import errors as of_emulation

    raised = {
        one.exit_code
        for module in (errors, of_emulation)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, errors.LlmsimError)
    }
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("| exit code |")[1]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text.split("\n\n")[0], re.M)}
    assert listed == {0, *raised, NOTHING_MEETS, DIFFERENT}
