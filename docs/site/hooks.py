"""Hooks of the site: navigation, pages outside of docs/, links to files of the repository."""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "reference/security.md",
    "cluster_config/README.md": "reference/cluster_files.md",
    "dataset/README.md": "reference/datasets.md",
    "evaluation/README.md": "explanation/published_figures.md",
    "astra-sim/README.md": "reference/engine/library.md",
}
"""Pages of the repository that are pages of the site too, and where they are there."""
ATTACHED = ("cluster_config", "dataset", "docs", "evaluation")
"""Folders whose other files a page may link to; the site holds a copy of each that is linked."""
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """The navigation, from the index page."""
    config["nav"] = [{"Home": "README.md"}, *navigation((ROOT / "docs/README.md").read_text())]
    return config


def navigation(index: str) -> list[Any]:
    """Tabs (##), groups (###) and pages (rows of tables) of the index page, for mkdocs."""
    tabs: list[Any] = []
    pages: list[Any] = []
    for line in index.split("\n"):
        depth, _, title = line.partition(" ")
        row = re.match(r"\| \[([^\]]+)\]\(([^)]+)\) \|", line)
        if depth == "##":
            pages = tab = []
            tabs.append({title: tab})
        elif depth == "###":
            pages = []
            tab.append({title: pages})
        elif row and tabs:
            source = posixpath.normpath(posixpath.join("docs", row[2]))
            pages.append({row[1]: _address(source)})
    return tabs


def on_files(files: "Files", config: Mapping[str, Any]) -> "Files":
    """Adds the pages that lie outside of docs/, the files they link to, and notebooks as pages."""
    from mkdocs.structure.files import File

    from docs.site import notebooks

    for source, address in OUTSIDE.items():
        files.append(File.generated(config, address, content=(ROOT / source).read_text("utf-8")))
    for source in sorted(_attachments(files)):
        files.append(
            File.generated(config, _address(source), abs_src_path=str(ROOT / source)),
        )
    for page, content in notebooks.pages(ROOT / "docs" / "notebooks"):
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    address = page.file.src_uri
    source = _source(address)

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        name, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not name:
            return match[0]
        found = _address(posixpath.normpath(posixpath.join(posixpath.dirname(source), name)))
        if found is None:
            return text[1:-1]
        here = posixpath.dirname(address) or "."
        return f"{text}({posixpath.relpath(found, here)}{f'#{anchor}' if anchor else ''})"

    return "\n".join(
        line if line.startswith("    ") else LINK.sub(replaced, line)
        for line in markdown.split("\n")
    )


def _attachments(files: "Files") -> set[str]:
    """Files of the repository that a page links to and that are no pages."""
    found = set()
    for file in files.documentation_pages():
        source = _source(file.src_uri)
        for _, target in LINK.findall(file.content_string):
            name = target.partition("#")[0]
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
            if name and "://" not in target and not path.startswith("docs/") and _address(path):
                found.add(path)
    return found - set(OUTSIDE)


def _source(address: str) -> str:
    """Where in the repository a page of the site is written."""
    outside = {page: source for source, page in OUTSIDE.items()}
    return outside.get(address, f"docs/{address}")


def _address(source: str) -> str | None:
    """Where on the site a file of the repository is; None where the site does not hold it."""
    if source in OUTSIDE:
        return OUTSIDE[source]
    if source.startswith("docs/") and source.endswith(".ipynb"):
        return source.removeprefix("docs/").replace(".ipynb", ".md")
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    held = source.partition("/")[0] in ATTACHED and (ROOT / source).is_file()
    return f"files/{source}" if held else None
