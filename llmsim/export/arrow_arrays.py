"""Arrow arrays of numpy arrays and of words, made of their buffers: `pyarrow.array` imports pandas
first, which takes a run that writes files longer than a short simulation does.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_BYTES = 2**31 - 1
"""The bytes of all words of an array."""


def numbers(
    values: NDArray[np.number], kind: "pa.DataType", missing: NDArray[np.bool_] | None = None
) -> "pa.Array":
    """Numbers as an array of an arrow type that holds all numbers of theirs; null where missing."""
    import pyarrow as pa

    stored = np.ascontiguousarray(values.astype(kind.to_pandas_dtype(), casting="safe"))
    validity = None if missing is None else _bits(~missing)
    return pa.Array.from_buffers(kind, len(stored), [validity, pa.py_buffer(stored)])


def words(values: Sequence[str | None]) -> "pa.Array":
    """Words as an array of strings."""
    import pyarrow as pa

    encoded = [b"" if word is None else word.encode() for word in values]
    ends = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(word) for word in encoded], out=ends[1:])
    if ends[-1] > LONGEST_BYTES:
        return pa.array(values, pa.string())
    missing = np.array([word is None for word in values], np.bool_)
    validity = _bits(~missing) if missing.any() else None
    offsets, text = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), offsets, text, validity)


def _bits(flags: NDArray[np.bool_]) -> "pa.Buffer":
    import pyarrow as pa

    return pa.py_buffer(np.packbits(flags, bitorder="little"))
