"""The value types of the cluster file: ranges, units and patterns, declared once for checks, schema
and messages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from llmsim.loading import without_pydantic_plugins

_INSIDE_ANOTHER: ContextVar[bool] = ContextVar("_INSIDE_ANOTHER", default=False)
_WHOLE: ContextVar[set[type] | None] = ContextVar("_WHOLE", default=None)
"""The sections that are built anew, with those inside them, where a JSON Schema is made."""


_Value = TypeVar("_Value")


@contextmanager
def _set(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class Section(BaseModel):
    """Base of every object of the cluster file: frozen, no unknown keys, no coercion (true is not
    1, "1" is not 1).

    A section's schema is built when a file has the section. Most files have few of them, and their
    schemas would take longer than the rest of a short run.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Inside another section's schema, a function that validates with this section's own."""
        anew = _WHOLE.get()
        if _INSIDE_ANOTHER.get() and anew is None:
            return core_schema.no_info_plain_validator_function(cls.model_validate)
        if anew is not None and cls not in anew:
            anew.add(cls)
            cls.model_rebuild(force=True)
        with _set(_INSIDE_ANOTHER, True):
            return handler(source)

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """What pydantic calls when the first object of a section is validated."""
        with without_pydantic_plugins():
            return super().model_rebuild(**options)

    @classmethod
    def model_json_schema(cls, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The JSON Schema with those of all sections inside."""
        with _set(_WHOLE, {cls}):
            cls.model_rebuild(force=True)
            return super().model_json_schema(*arguments, **options)


def _unit(text: str) -> dict[str, Any]:
    return {"unit": text}


def _positive(unit: str, most: float) -> Any:
    return Field(ge=0.001, le=most, json_schema_extra=_unit(unit))


# Upper ends keep every later product in 64 bits: 2^20 GB is 2^50 bytes, 1e6 GB/s is 1e15 bytes/s,
# 1e12 ns is 1e15 ps.
SizeGib = Annotated[float, _positive("GB of 2^30 bytes", 1 << 20)]
BandwidthGbPerS = Annotated[float, _positive("GB/s of 1e9 bytes", 10**6)]
TimeNs = Annotated[float, Field(ge=0, le=10**12, json_schema_extra=_unit("ns"))]
TimeS = Annotated[float, Field(ge=0, le=10**6, json_schema_extra=_unit("s"))]
TargetMs = Annotated[float, Field(ge=1e-9, le=10**9, json_schema_extra=_unit("ms"))]
PowerW = Annotated[float, Field(ge=0, le=10**9, json_schema_extra=_unit("W"))]
EnergyPjPerBit = Annotated[float, Field(ge=0, le=10**6, json_schema_extra=_unit("pJ/bit"))]
PricePerHour = Annotated[float, Field(ge=0, le=10**6, json_schema_extra=_unit("USD/h"))]
PricePerKwh = Annotated[float, Field(ge=0, le=10**3, json_schema_extra=_unit("USD/kWh"))]
CarbonPerKwh = Annotated[float, Field(ge=0, le=10**4, json_schema_extra=_unit("gCO2e/kWh"))]
Fraction01 = Annotated[float, Field(ge=0, le=1)]
Utilization = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]
PositiveCount = Annotated[int, Field(ge=1, le=1 << 20)]
Tokens = Annotated[int, Field(ge=0, le=1 << 20, json_schema_extra=_unit("tokens"))]
PositiveTokens = Annotated[int, Field(ge=1, le=1 << 30, json_schema_extra=_unit("tokens"))]


def _text(pattern: str, expected: str) -> Any:
    return Field(
        min_length=1, max_length=1024, pattern=pattern, json_schema_extra={"expected": expected}
    )


Name = Annotated[
    str, _text(r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$", "a name that is not blank")
]
SloClass = Annotated[
    str,
    _text(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        "a name of at most 64 letters, digits, dots, dashes and underscores",
    ),
]
FolderName = Annotated[
    str,
    _text(
        r"^([^\x00-\x1f/\\\x7f.][^\x00-\x1f/\\\x7f]*|[^\x00-\x1f\x7f]*\.json)$",
        'a name without slashes, such as "H100", or the path of a data sheet that ends in .json',
    ),
]
MemoryLocation = Annotated[
    str, _text(r"^(npu|cpu|cxl:[0-9]{1,6})$", '"npu", "cpu" or "cxl:<device number>"')
]
BlockRanges = Annotated[
    str,
    _text(
        r"^\s*[0-9]{1,6}(\s*-\s*[0-9]{1,6})?(\s*,\s*[0-9]{1,6}(\s*-\s*[0-9]{1,6})?)*\s*$",
        'ranges, as in "0-3,7"',
    ),
]


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _per_dimension(item: Any, low: float, most: float, unit: str) -> Any:
    """A number, or one number for each dimension of the network, innermost first; always a tuple
    once read.
    """
    number = {"type": "number", "minimum": low, "maximum": most, "unit": unit}
    several = {"type": "array", "items": number, "minItems": 1, "maxItems": 16}
    return Annotated[
        tuple[item, ...],
        Field(min_length=1, max_length=16, strict=False),
        BeforeValidator(_as_list),
        WithJsonSchema({"anyOf": [number, several]}),
    ]


_share = {"type": "number", "minimum": 0, "maximum": 1}
SharePerPosition = Annotated[
    tuple[Fraction01, ...],
    Field(min_length=1, max_length=64, strict=False),
    BeforeValidator(_as_list),
    WithJsonSchema(
        {"anyOf": [_share, {"type": "array", "items": _share, "minItems": 1, "maxItems": 64}]}
    ),
]
"""A share, or one share for each position; always a tuple once read."""

BandwidthPerDimension = _per_dimension(BandwidthGbPerS, 0.001, 10**6, "GB/s of 1e9 bytes")
LatencyPerDimension = _per_dimension(TimeNs, 0, 10**12, "ns")
