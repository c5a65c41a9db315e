"""Typed access to the fields of a config.json; every error names file and field."""

from collections.abc import Mapping
from typing import Any

from llmsim.config.errors import InputError, nearest

Fields = Mapping[str, Any]

MAX_SHOWN = 60
MAX_COUNT = 1 << 24
MAX_LAYERS = 10_000
MAX_EXPERTS = 1 << 16
"""No published dimension comes near these; far beyond them byte counts would leave int64."""


class Reader:
    """Typed access to the fields of one config.json; every error names file and field.
    Read only.
    """

    def __init__(self, fields: Fields, source: str) -> None:
        self.fields = fields
        self.source = source

    def present(self, key: str) -> bool:
        """The field is there and not null."""
        return self.fields.get(key) is not None

    def count(self, *keys: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """The first present of `keys` as an integer in [1, most]; `default` if none is, InputError
        without one.
        """
        key = next((key for key in keys if self.present(key)), None)
        if key is None:
            if default is not None:
                return default
            close = nearest(keys[0], self._of_type(int))
            raise InputError(
                f'{self.source}: field "{keys[0]}" is missing{close}; it must be an integer >= 1'
            )
        value = self.fields[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InputError(
                f'{self.source}: field "{key}" is {shown(value)}; it must be an integer from 1 '
                f"to {most}"
            )
        return value

    def _of_type(self, kind: type) -> list[str]:
        """The fields that hold a value of this type: another one cannot be what is missing."""
        return [key for key, value in self.fields.items() if type(value) is kind]

    def flag(self, key: str, default: bool) -> bool:
        """A boolean field."""
        value = self.fields[key] if self.present(key) else default
        if not isinstance(value, bool):
            raise InputError(
                f'{self.source}: field "{key}" is {shown(value)}; it must be true or false'
            )
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string field."""
        value = self.fields[key] if self.present(key) else default
        if value is None:
            raise InputError(
                f'{self.source}: field "{key}" is missing{nearest(key, self._of_type(str))}; it '
                "must be a string"
            )
        if not isinstance(value, str):
            raise InputError(f'{self.source}: field "{key}" is {shown(value)}; it must be a string')
        return value

    def table(self, key: str) -> "Reader | None":
        """A nested object; None if absent."""
        if not self.present(key):
            return None
        value = self.fields[key]
        if not isinstance(value, dict):
            raise InputError(
                f'{self.source}: field "{key}" is {shown(value)}; it must be an object'
            )
        return Reader(value, f"{self.source}: {key}")

    def index(self, key: str, length: int) -> int:
        """A place in a row of `length`, negative from its end; beyond it the nearest."""
        value = self.fields[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(
                f'{self.source}: field "{key}" is {shown(value)}; it must be an integer'
            )
        return min(value if value >= 0 else max(length + value, -1), length - 1)

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of integers >= 0; empty if absent."""
        value = self.fields[key] if self.present(key) else []
        if not isinstance(value, list) or any(
            isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in value
        ):
            raise InputError(
                f'{self.source}: field "{key}" is {shown(value)}; it must be a list of integers '
                ">= 0"
            )
        return tuple(value)

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of integers >= 0, or a text with commas between them; empty if absent."""
        value = self.fields.get(key)
        if isinstance(value, str) and all(one.strip().isdigit() for one in value.split(",")):
            return tuple(int(one) for one in value.split(","))
        return self.counts(key)


def shown(value: object) -> str:
    """A value as an error shows it: never a screenful."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number beyond 64 bits"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
