"""Runs the notebooks of docs/notebooks and writes each as a page with its results.

The files hold no outputs: a test runs every cell, and `make docs` runs them again for the site.
"""

import ast
import base64
import contextlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Cell:
    """A cell and, of code, what it showed: printed text, its last value, pictures as PNG."""

    kind: str
    source: str
    printed: str = ""
    value: Any = None
    pictures: tuple[bytes, ...] = ()


def cells(path: Path) -> list[tuple[str, str]]:
    """Kind (markdown or code) and text of each cell of a notebook file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def execute(path: Path) -> Iterator[Cell]:
    """Runs the cells in order in this process, in the root of the repository; errors propagate."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(ROOT):
        for kind, source in cells(path):
            yield _run(source, names) if kind == "code" else Cell(kind, source)


def pages(folder: Path) -> Iterator[tuple[str, str]]:
    """Address and Markdown of a page for each notebook."""
    for path in sorted(folder.glob("*.ipynb")):
        title = f"[Notebook file]({path.name})\n\n"
        text = "".join(_markdown(cell) for cell in execute(path))
        first, _, rest = text.partition("\n\n")
        yield f"notebooks/{path.stem}.md", f"{first}\n\n{title}{rest}"


def _run(source: str, names: dict[str, Any]) -> Cell:
    os.environ["MPLBACKEND"] = "agg"
    parsed = ast.parse(source)
    last = parsed.body.pop() if parsed.body and isinstance(parsed.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, "<cell>", "exec"), names)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if source.rstrip().endswith(";"):  # as in a notebook: shows nothing
        value = None
    return Cell("code", source, printed.getvalue(), value, tuple(_pictures()))


def _pictures() -> Iterator[bytes]:
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        stream = io.BytesIO()
        plt.figure(number).savefig(stream, format="png", dpi=90, transparent=True)
        plt.close(number)
        yield stream.getvalue()


def _markdown(cell: Cell) -> str:
    if cell.kind == "markdown":
        return f"{cell.source}\n\n"
    text = f"```python\n{cell.source}\n```\n\n"
    if cell.printed:
        text += f"```text\n{cell.printed}```\n\n"
    for picture in cell.pictures:
        text += f'<img alt="" src="data:image/png;base64,{base64.b64encode(picture).decode()}">\n\n'
    return text + _shown(cell.value)


def _shown(value: Any) -> str:
    """The last value of a cell as a notebook shows it."""
    if value is None:
        return ""
    if hasattr(value, "_repr_html_"):
        return f'<div class="output">\n{value._repr_html_()}\n</div>\n\n'
    return f"```text\n{value!r}\n```\n\n"
