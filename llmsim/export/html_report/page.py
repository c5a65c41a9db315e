"""The page: sections in order, with the style and the script that a browser needs, all inline."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from llmsim.config.files import input_files
from llmsim.export.files import atomic_writer
from llmsim.export.html_report import machine_sections as machine
from llmsim.export.html_report import results_sections as results
from llmsim.export.html_report.runs import Explained, Run, read_runs
from llmsim.export.html_report.why_section import why

SECTIONS: tuple[tuple[str, str, Callable[[Sequence[Run]], str]], ...] = (
    ("headline", "Headline", results.headline),
    ("targets", "Targets", results.targets),
    ("latency", "Latency", results.latencies),
    ("load", "Queues and KV cache", results.load),
    ("steps", "Steps", results.steps),
    ("blame", "Where the time goes", results.blame),
    ("why", "Why", why),
    ("utilisation", "Utilisation", machine.utilisation),
    ("network", "Network and operators", machine.network),
    ("power", "Power", machine.power),
    ("cost", "Cost", machine.cost),
    ("configuration", "Configuration", machine.configuration),
    ("provenance", "Provenance", machine.provenance),
    ("accuracy", "Accuracy", machine.accuracy),
)


def write_report(
    folders: Sequence[Path],
    path: Path,
    title: str | None = None,
    explain: Callable[[Path], Explained] | None = None,
) -> None:
    """Writes the report of run folders, with what `explain` says of each; raises InputError where a
    folder is none.
    """
    runs = read_runs(folders, explain)
    text = page(runs, title or _title(runs))
    with atomic_writer(path) as stream:
        stream.write(text)


def page(runs: Sequence[Run], title: str) -> str:
    """The HTML of the report."""
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in SECTIONS)
    body = "".join(
        f'<section id="{key}"><h2>{name}</h2>{make(runs)}</section>' for key, name, make in SECTIONS
    )
    models = "; ".join(dict.fromkeys(run.tables.model for run in runs))
    about = f"{models} · llmsim {runs[0].tables.version}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{escape(about)}</p><nav>{links}</nav></header>"
        f"<main>{body}</main><script>{_asset('page.js')}</script></body></html>\n"
    )


def _title(runs: Sequence[Run]) -> str:
    return "Report of " + ", ".join(run.name for run in runs)


def _asset(name: str) -> str:
    return input_files.read_bytes(Path(__file__).with_name(name)).decode()
