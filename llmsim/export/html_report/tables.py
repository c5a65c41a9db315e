"""HTML tables: rows of text, numbers aligned, one column for each run."""

from collections.abc import Iterable, Sequence
from html import escape

from llmsim.export.html_report.charts import number_text


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of texts; the first column is a heading. Empty without rows."""
    body = "".join(
        f'<tr><th scope="row">{escape(str(row[0]))}</th>'
        + "".join(f"<td>{escape(str(cell))}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    if not body:
        return ""
    top = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in head)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def compared(values: Sequence[float | None]) -> list[str]:
    """Numbers of several runs, with the change from the first one in percent."""
    first = values[0] if values else None
    texts = []
    for number, value in enumerate(values):
        text = number_text(value, 4)
        if number and value is not None and first:
            text += f" ({100 * (value - first) / first:+.1f} %)"
        texts.append(text)
    return texts


def percent(share: float | None) -> str:
    """A share in percent; "-" for none."""
    return "-" if share is None else f"{100 * share:.1f} %"
