"""Keeps compiled cost tables on disk, by the hash of everything that they were made from."""

from __future__ import annotations

import json
import os
import stat
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from llmsim.config.engine.latent_prompts import LatentPrompts
from llmsim.costs.cache_checks import check
from llmsim.costs.experts.load_sampling import SampledTable
from llmsim.costs.source import (
    CompiledCosts,
    Floor,
    LatentGrid,
    MixedAttention,
    MixedGrid,
    OpCost,
    SplitAttention,
    SplitGrid,
)

MAGIC = b"LLMSIMC1"
ALIGNMENT = 8
MAX_FILES = 256
"""Oldest tables beyond this number are removed when a new one is written (each is 1 to 3 MB)."""

KEPT_FILES = 16
"""Of which one process keeps the tables, immutable as they are: searches and the log doctor compile
one deployment thousands of times.
"""

MAX_BYTES = 1 << 30
"""Of one file; larger ones are not read."""
DAMAGED = (
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading a file raises that `pack` did not write."""

_CLASSES = {
    cls.__name__: cls
    for cls in (
        MixedAttention,
        SplitAttention,
        CompiledCosts,
        SampledTable,
        Floor,
        LatentGrid,
        LatentPrompts,
        MixedGrid,
        OpCost,
        SplitGrid,
    )
}


def cache_dir() -> Path | None:
    """`$LLMSIM_CACHE`, else ~/.cache/llmsim; None when there is no home folder to put it in."""
    given = os.environ.get("LLMSIM_CACHE")
    if given:
        return Path(given) / "costs"
    try:
        return Path.home() / ".cache" / "llmsim" / "costs"
    except RuntimeError:
        return None


def load(key: str) -> CompiledCosts | None:
    """The tables stored under `key`, or None when there are none or the file is damaged (it is then
    written anew).
    """
    folder = cache_dir()
    if folder is None:
        return None
    path = folder / f"{key}.bin"
    try:
        about = path.stat()
        if not _may_be_table(about):
            return None
        return _read(path, about.st_ino, about.st_size, about.st_mtime_ns)
    except DAMAGED:
        return None


def _may_be_table(about: os.stat_result) -> bool:
    """Whether it is a file of a size that a table can have: what else lies there is not even
    opened.
    """
    return stat.S_ISREG(about.st_mode) and about.st_size <= MAX_BYTES


@lru_cache(maxsize=KEPT_FILES)
def _read(path: Path, inode: int, size: int, mtime_ns: int) -> CompiledCosts:
    """The tables of a file; whoever replaces or damages it changes one of the other arguments."""
    return check(unpack(path.read_bytes()))


def store(key: str, costs: CompiledCosts) -> str | None:
    """Writes the tables so that a reader sees all or nothing; the reason as a sentence when that is
    not possible.
    """
    folder = cache_dir()
    if folder is None:
        return (
            "compiled cost tables are not kept: there is no home folder; set LLMSIM_CACHE to a "
            "folder"
        )
    import tempfile

    temporary: str | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{key[:16]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(pack(costs))
        os.replace(temporary, folder / f"{key}.bin")
        _prune(folder)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        return (
            f'compiled cost tables are not kept: "{folder}" is not writable ({error.strerror}); '
            "set LLMSIM_CACHE"
        )
    return None


def _prune(folder: Path) -> None:
    files = list(folder.glob("*.bin"))
    if len(files) <= MAX_FILES:
        return
    ages = []
    for file in files:
        try:
            ages.append((file.stat().st_mtime_ns, file))
        except OSError:  # another process removed it first
            continue
    for _, file in sorted(ages)[: len(ages) - MAX_FILES]:
        file.unlink(missing_ok=True)


def pack(costs: CompiledCosts) -> bytes:
    """One self-checking block: magic, CRC-32, header length, JSON header, arrays."""
    arrays: list[np.ndarray] = []
    tree = _encode(costs, arrays)
    shapes = [[str(array.dtype), list(array.shape)] for array in arrays]
    header = json.dumps({"tree": tree, "arrays": shapes}).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    blocks = [np.ascontiguousarray(array).tobytes() for array in arrays]
    body = header + b"".join(block + b"\0" * (-len(block) % ALIGNMENT) for block in blocks)
    checksum = zlib.crc32(body)
    return MAGIC + checksum.to_bytes(8, "little") + len(header).to_bytes(8, "little") + body


def unpack(data: bytes) -> CompiledCosts:
    """Inverse of `pack`; the arrays are read-only views. ValueError when the block is
    not intact.
    """
    start = len(MAGIC) + 16
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise ValueError("not a compiled cost table")
    checksum = int.from_bytes(data[8:16], "little")
    if zlib.crc32(memoryview(data)[start:]) != checksum:
        raise ValueError("the compiled cost table is damaged")
    offset = start + int.from_bytes(data[16:24], "little")
    header = json.loads(data[start:offset])
    arrays = []
    for dtype, shape in header["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype=dtype, count=count, offset=offset).reshape(shape)
        arrays.append(array)
        offset += array.nbytes + (-array.nbytes % ALIGNMENT)
    costs = _decode(header["tree"], arrays)
    if not isinstance(costs, CompiledCosts):
        raise ValueError("not a compiled cost table")
    return costs


def _encode(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, Struct):
        members = {name: _encode(one, arrays) for name, one in asdict(value).items()}
        return {"class": type(value).__name__, "members": members}
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, arrays) for item in value]}
    return value


def _decode(tree: Any, arrays: list[np.ndarray]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return arrays[tree["array"]]
    if "tuple" in tree:
        return tuple(_decode(item, arrays) for item in tree["tuple"])
    members = {name: _decode(item, arrays) for name, item in tree["members"].items()}
    return _CLASSES[tree["class"]](**members)
