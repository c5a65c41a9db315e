"""Simulates every published measurement and tabulates errors: evaluation/measured.sh [--data DIR]

DIR holds public_points/, groundtruth/, artifact/ and kv_logs/, which are not part of this
repository; by default the folder shared/data beside the checkout.
"""

import sys
import tempfile
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser
from measured.artifact import artifact_points
from measured.kv import predict, read_servers
from measured.points import Skipped, read_points
from measured.report import KvRow, Row, kv_markdown, points_markdown
from measured.runs import simulate

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = OneSentenceParser(prog="measured", description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of points, or their beginnings"
    )
    parser.add_argument("--profile", default="", help="one engine profile for all points")
    parser.add_argument("--more", default="", help="options of llmsim run for all points")
    options = parser.parse_args()
    table = options.data / "public_points" / "points.csv"
    points = artifact_points()
    if table.exists():
        points += read_points(table)
    else:
        print(f"skipped the public points: {table} is absent", file=sys.stderr)
    if options.only:
        points = [point for point in points if point.name.startswith(tuple(options.only))]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for point in points:
            try:
                found = simulate(
                    point, options.data, Path(scratch), tuple(options.more.split()), options.profile
                )
                rows.append(Row(point, found.errors(point)))
            except Skipped as reason:
                rows.append(Row(point, {}, str(reason)))
        print(points_markdown(rows))
        logs = options.data / "kv_logs" / "kv_logs.csv"
        if logs.exists() and not options.only:
            print(f"\n{kv_markdown(kv_rows(logs, Path(scratch)))}")
    return 0


def kv_rows(table: Path, scratch: Path) -> list[KvRow]:
    """Every start-up log of a table beside its prediction."""
    rows = []
    for server in read_servers(table):
        try:
            tokens = predict(server, scratch).tokens
            rows.append(KvRow(server, 100 * (tokens / server.tokens - 1), tokens))
        except Skipped as reason:
            rows.append(KvRow(server, 0.0, skipped=str(reason)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
