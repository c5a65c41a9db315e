"""Element types by their short names, their sizes, and the spellings that others use."""

from collections.abc import Mapping
from fractions import Fraction

from llmsim.config.errors import InputError, nearest

DTYPES: Mapping[str, Fraction] = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "fp16": Fraction(2),
    "fp8": Fraction(1),
    "int8": Fraction(1),
    "fp4": Fraction(1, 2),
    "int4": Fraction(1, 2),
}
"""Bytes per element of the dtypes by their short names."""

DTYPE_ALIASES: Mapping[str, str] = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}


def short_dtype(name: str) -> str:
    """The short name ("bf16") of a dtype as vLLM, torch or this package spell it; InputError if
    unknown.
    """
    word = name.lower().removeprefix("torch.")
    word = DTYPE_ALIASES.get(word, word)
    if word not in DTYPES:
        known = [*DTYPES, *DTYPE_ALIASES]
        raise InputError(f'unknown dtype "{name}"{nearest(word, known)}; known: {", ".join(known)}')
    return word


def dtype_bytes(name: str) -> int | Fraction:
    """Bytes per element of a dtype (short or long name); a Fraction only below one byte; InputError
    if unknown.
    """
    size = DTYPES[short_dtype(name)]
    return int(size) if size.denominator == 1 else size
