"""The content hasher in plain Python, with a cryptographic hash: what the native one must agree
with, id for id.
"""

from hashlib import blake2b

import numpy as np


class ReferenceHasher:
    """Chained 128-bit blake2b digests, interned to dense ids from 1 in order of first
    appearance.
    """

    def __init__(self, granularity: int) -> None:
        self.granularity = granularity
        self._ids: dict[bytes, int] = {}
        self._keys: list[int] = []
        self._offsets = [0]

    def add(self, input_ids, output_ids=None) -> None:
        stream = [*input_ids, *(output_ids or [])]
        digest = b""
        for start in range(0, len(stream) - self.granularity + 1, self.granularity):
            block = np.array(stream[start : start + self.granularity], dtype="<i8").tobytes()
            digest = blake2b(digest + block, digest_size=16).digest()
            self._keys.append(self._ids.setdefault(digest, len(self._ids) + 1))
        self.skip()

    def skip(self) -> None:
        self._offsets.append(len(self._keys))

    def offsets(self):
        return np.array(self._offsets, dtype=np.int64)

    def keys(self):
        return np.array(self._keys, dtype=np.uint64)
