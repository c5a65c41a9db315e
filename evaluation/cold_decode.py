"""What a decode call on cold KV takes beyond its bytes, by thread blocks: a data sheet's
`decode_cold_ns`.

The rows of a bundle come from whole steps of an engine, so the KV of a call left the
last-level cache long ago; the tables of the silicon database repeat one call. For each number of
thread blocks (sequences x KV heads of a rank): the median of measured time - bytes / rate over the
decodes whose KV is twice the last-level cache or more, or, for few blocks, a quarter of it. The
rate is the one at which the database's own rows beyond the cache grow.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import estimator

from llmsim.cli.arguments import OneSentenceParser
from llmsim.config.errors import InputError
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.sources.silicon.attention.dense import find_rows
from llmsim.costs.sources.silicon.attention.grid import cold_line, decode_times
from llmsim.costs.sources.silicon.database import find_database
from llmsim.model import load_hardware, load_model

FEW_BLOCKS = 32
"""Up to here no row of the bundle's grid reaches twice the cache."""
ELEMENT_BYTES = 2
Row = tuple[int, int, float]
"""(thread blocks, KV bytes, us)."""


def decode_rows(folder: Path, kv_heads: int, head_dim: int) -> list[Row]:
    """Pure decodes of every TP degree."""
    rows = []
    for path in sorted(folder.glob("tp*/attention.csv")):
        heads = max(1, kv_heads // int(path.parent.name.removeprefix("tp")))
        with path.open(encoding="utf-8", newline="") as lines:
            for line in csv.DictReader(lines):
                sequences, cached = int(line["n_decode"]), int(line["kv_decode"])
                if sequences and line["prefill_chunk"] == "0" and line["kv_prefill"] == "0":
                    moved = sequences * cached * heads * head_dim * 2 * ELEMENT_BYTES
                    rows.append((sequences * heads, moved, float(line["time_us"])))
    return rows


def cold_decode_ns(
    rows: Sequence[Row], cache_bytes: int, bytes_per_us: float
) -> list[tuple[int, int]]:
    """(thread blocks, ns) ascending."""
    by_blocks: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for blocks, moved, us in sorted(rows):
        by_blocks[blocks].append((moved, us))
    found = []
    for blocks, points in sorted(by_blocks.items()):
        enough = cache_bytes / 4 if blocks <= FEW_BLOCKS else 2 * cache_bytes
        beyond = [us - moved / bytes_per_us for moved, us in points if moved >= enough]
        if len(beyond) > 1:
            found.append((blocks, round(median(beyond) * 1e3, -2)))
    return [(blocks, int(ns)) for blocks, ns in found]


def database_rate(model: str, hardware: str) -> float:
    """Bytes per us at which decodes of the silicon database read KV that no cache holds."""
    request = estimator.cost_request(model, hardware, 1)
    database, peak_rates = find_database(request), peak_rates_of(request)
    if database is None or peak_rates is None:
        raise InputError(f'the silicon database has no tables for "{hardware}"')
    op = next(op for op in request.operators if op.kind == "attention")
    rows = find_rows(database.tables("generation_attention"), op, request.dtypes.kv)
    sequences, cached, us = decode_times(rows)
    return cold_line(
        us, sequences[:, None] * (cached[None, :] + 1.0) * op.kv_bytes_per_context_token, peak_rates
    )[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the constants."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        help="a model's variant folder of a profile bundle: ORGANISATION/MODEL/VARIANT",
    )
    parser.add_argument("hardware", help="the device that the bundle was measured on")
    given = parser.parse_args(arguments)
    try:
        print([list(pair) for pair in constants(given.folder, given.hardware)])
    except InputError as error:
        parser.error(str(error))
    return 0


def constants(folder: Path, name: str) -> list[tuple[int, int]]:
    """The pairs of thread blocks and nanoseconds; raises InputError."""
    if not (folder / "tp1").is_dir():
        raise InputError(
            f"{folder} is no variant folder of a profile bundle, as it has no folder tp1; name "
            "ORGANISATION/MODEL/VARIANT of a bundle"
        )
    model = load_model("/".join(folder.parts[-3:-1]))
    rate = database_rate(model.name, name)
    sheet = load_hardware(name)
    assert sheet is not None, "the database knows it"
    rows = decode_rows(folder, model.num_key_value_heads, model.head_dim)
    return cold_decode_ns(rows, sheet.last_level_cache_bytes, rate)


if __name__ == "__main__":
    sys.exit(main())
