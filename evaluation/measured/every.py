"""Simulates every published measurement and tabulates errors: evaluation/measured.sh [--data DIR]

DIR holds public_points/, groundtruth/, artifact/ and kv_logs/, which are not part of this
repository; by default the folder shared/data beside the checkout.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser
from measured.artifact import artifact_points
from measured.beside import beside_points
from measured.intervals import error_bars_json, intervals, intervals_markdown, least_share
from measured.kv import predict, read_servers
from measured.points import Point, Skipped, read_points
from measured.report import KvRow, Row, kv_markdown, points_markdown, terms_markdown
from measured.runs import simulate
from measured.texts import BESIDE, INTERVALS, INTRODUCTION, KV, TERMS, WRONG

ABLATED = (
    "frontend",
    "host_gap",
    "host_ranks",
    "host_sequence",
    "launches",
    "decode_skew",
    "prompts_together",
    "context_expansion",
    "latent_prompts",
    "cold_kv",
    "kv_write",
    "mixed_step",
    "sustained_clock",
    "card_streaming",
    "fused_scaling",
    "touched_experts",
    "padded_experts",
    "fullest_rank",
    "default_tiles",
    "sink_attention",
    "weight_only_experts",
    "second_stream",
    "expert_choice",
    "async_lag",
    "api_latency",
)
"""Terms whose worth the page shows."""
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = OneSentenceParser(prog="measured", description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of points, or their beginnings"
    )
    parser.add_argument("--output", type=Path, help="file of the page; printed if not given")
    parser.add_argument("--error-bars", type=Path, help="file of the intervals that runs show")
    parser.add_argument("--profile", default="", help="one engine profile for all points")
    parser.add_argument("--more", default="", help="options of llmsim run for all points")
    options = parser.parse_args()
    points = every_point(options.data)
    if options.only:
        points = [point for point in points if point.name.startswith(tuple(options.only))]
    with tempfile.TemporaryDirectory() as scratch:
        more = tuple(options.more.split())
        rows = point_rows(points, options.data, Path(scratch), more, options.profile)
        more_points = [] if options.only else beside_points()
        beside = point_rows(more_points, options.data, Path(scratch), more, options.profile)
        known = [*rows, *beside]
        found = intervals(known)
        own_percent = f"{100 * least_share(known):.0f}"
        explained = INTERVALS.format(least_share=own_percent)
        parts = [INTRODUCTION, points_markdown(rows), explained, intervals_markdown(found)]
        if options.error_bars is not None:
            options.error_bars.write_text(error_bars_json(found, known), encoding="utf-8")
        if not options.only:
            parts += [TERMS, terms_markdown(rows, without_terms(points, options, Path(scratch)))]
            parts += [BESIDE, points_markdown(beside)]
        logs = options.data / "kv_logs" / "kv_logs.csv"
        if logs.exists() and not options.only:
            parts += [KV, kv_markdown(kv_rows(logs, Path(scratch)))]
        parts.append(WRONG)
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


def without_terms(
    points: Sequence[Point], options: argparse.Namespace, scratch: Path
) -> dict[str, list[Row]]:
    """Every point without one term at a time."""
    return {
        term: point_rows(points, options.data, scratch, ("--disable-term", term), options.profile)
        for term in ABLATED
    }


def every_point(data: Path) -> list[Point]:
    """The points of the artifact and, where it is there, of the table."""
    table = data / "public_points" / "points.csv"
    if not table.exists():
        print(f"skipped the public points: {table} is absent", file=sys.stderr)
        return artifact_points()
    return artifact_points() + read_points(table)


def point_rows(
    points: Sequence[Point],
    data: Path,
    scratch: Path,
    more: tuple[str, ...] = (),
    profile: str = "",
) -> list[Row]:
    """Every point simulated, with its errors or why it has none."""
    rows = []
    for point in points:
        try:
            found = simulate(point, data, scratch, more, profile)
            errors = found.errors(point)
            rows.append(Row(point, errors, own_share=found.own_share, kind=found.kind))
        except Skipped as reason:
            rows.append(Row(point, {}, str(reason).replace(f"{scratch}/", "")))
    return rows


def kv_rows(table: Path, scratch: Path) -> list[KvRow]:
    """Every start-up log of a table beside its prediction."""
    rows = []
    for server in read_servers(table):
        try:
            tokens = predict(server, scratch).tokens
            rows.append(KvRow(server, 100 * (tokens / server.tokens - 1), tokens))
        except Skipped as reason:
            rows.append(KvRow(server, 0.0, skipped=str(reason).replace(f"{scratch}/", "")))
    return rows


if __name__ == "__main__":
    sys.exit(main())
