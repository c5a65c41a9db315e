"""The front of a sizing answer as a picture, and the answer as one HTML file."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.api.pictures.front import DEVICE, USER, Figure, Point, draw_front, write_picture
from llmsim.sizing.answer import Answer, front_name, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES = "times"
WIDTH, HEIGHT, EDGE = 640, 320, 60
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "pre{white-space:pre-wrap}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;border-bottom:1px solid #8884;text-align:left}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}}"
)


class AnswerPlots:
    """Draws one answer; every method returns the axes, so that it can be changed and saved."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def pareto(self, ax: "Axes | None" = None) -> "Axes":
        """The deployments that no other beats in both speed for a user and tokens per device.

        Raises InputError without matplotlib.
        """
        points = [
            Point(front_name(one), one["tok_s_per_user"], one["output_tok_s_per_device"])
            for one in self._answer.pareto()
        ]
        return draw_front(points, Figure(USER, True), Figure(DEVICE, True), ax)


def plot(answer: Answer, path: Path) -> None:
    """Writes the front as a picture; raises InputError without matplotlib."""
    write_picture(path, answer.found.question.model, answer.plot.pareto)


def html(answer: Answer) -> str:
    """One page without scripts and without network: headline, table, front."""
    fields = answer.as_json()
    shown = [*([answer.best] if answer.best else []), *(one for one, _ in answer.next)]
    rows = [
        {**row, TIMES: "" if one.sources is None else one.sources.words}
        for row, one in zip(filter(None, (fields["best"], *fields["next"])), shown, strict=True)
    ]
    title = f"Sizing {answer.found.question.model}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
        f"<pre>{escape(text(answer).split('Output tok/s per device')[0])}</pre>"
        f"{_table(rows)}{_svg(fields['pareto'])}</html>\n"
    )


def _table(rows: list[dict[str, Any]]) -> str:
    columns = ("devices", "device", "layout", "output_tok_s", "usd_per_h", TIMES, "misses")
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in columns) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def _svg(front: list[dict[str, Any]]) -> str:
    if not front:
        return ""
    points = [(one["tok_s_per_user"], one["output_tok_s_per_device"]) for one in front]
    wide = max(x for x, _ in points) * 1.1
    high = max(y for _, y in points) * 1.1
    drawn = [
        (EDGE + x / wide * (WIDTH - 2 * EDGE), HEIGHT - EDGE - y / high * (HEIGHT - 2 * EDGE))
        for x, y in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    dots = "".join(
        f"<circle cx={x:.1f} cy={y:.1f} r=4 fill=steelblue><title>"
        f"{escape(front_name(one))}: {one['tok_s_per_user']:.1f} tok/s per "
        f"user, {one['output_tok_s_per_device']:.1f} tok/s per device</title></circle>"
        for (x, y), one in zip(drawn, front, strict=True)
    )
    style = "font-size=12 fill=currentColor"
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width={WIDTH} role=img>"
        f"<polyline points='{line}' fill=none stroke=steelblue stroke-width=2 />{dots}"
        f"<text x={WIDTH / 2:.0f} y={HEIGHT - 15} text-anchor=middle {style}>tokens per second for "
        f"a user (to {wide:,.0f})</text>"
        f"<text x=15 y={HEIGHT / 2:.0f} transform='rotate(-90 15 {HEIGHT / 2:.0f})' "
        f"text-anchor=middle {style}>output tok/s per device (to {high:,.0f})</text></svg>"
    )
