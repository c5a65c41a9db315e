"""Baseten's request exports (Parquet or Arrow): timestamp_start_unix_ms, input_tokens,
output_tokens, block hashes.
"""

from llmsim.config.errors import InputError
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.parquet import stored_batches
from llmsim.workload.formats.rows import note_unused, scaled_ns
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table

WANTED = ("timestamp_start_unix_ms", "input_tokens", "output_tokens")
OPTIONAL = ("total_hashes", "block_size", "provided_session_id")
BLOCK_TOKENS = 64


def detect(head: Head) -> bool:
    return head.kind in ("parquet", "arrow")


def read(source: Source, head: Head) -> Table:
    table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS, labels=True)
    table.unit = "row"
    number, size = 0, None
    for batch in stored_batches(source.path, head.kind, _wanted(table, head)):
        columns = {
            name: batch.column(index).to_pylist() for index, name in enumerate(batch.schema.names)
        }
        blank = [None] * batch.num_rows
        hashes, sizes, sessions = (columns.get(name, blank) for name in OPTIONAL)
        for index, values in enumerate(zip(*(columns[name] for name in WANTED), strict=True)):
            number += 1
            if any(
                not isinstance(value, int | float) or not abs(value) < 1 << 62 for value in values
            ):
                raise table.refusal(
                    number, f"a row needs numbers in {', '.join(WANTED)}, but holds {values}"
                )
            if hashes[index] and sizes[index] and source.options.block is None:
                size = size or sizes[index]
                if sizes[index] != size:
                    raise table.refusal(
                        number,
                        f'"block_size" is {sizes[index]}, but {size} before: one file, one size',
                    )
                table.block_tokens = int(size)
            at_ns = scaled_ns(table, number, values[0], 1_000_000, WANTED[0])
            session = None if sessions[index] is None else str(sessions[index])
            table.add(
                number, at_ns, int(values[1]), int(values[2]), session=session, ids=hashes[index]
            )
        if table.full:
            break
    return table


def _wanted(table: Table, head: Head) -> list[str]:
    missing = [name for name in WANTED if name not in head.columns]
    if missing:
        raise InputError(
            f'{table.source.path}: the column "{missing[0]}" is missing; needed are '
            f"{', '.join(WANTED)}"
        )
    note_unused(table, 1, head.columns, [*WANTED, *OPTIONAL])
    return [name for name in head.columns if name in WANTED + OPTIONAL]
