"""Singular and plural in sentences with counts."""


def plural(count: float, one: str, several: str = "") -> str:
    """The word for a count: `one` for exactly 1, else `several`, which is `one` with an s if not
    given.
    """
    return one if count == 1 else several or f"{one}s"


def counted(count: int, one: str, several: str = "") -> str:
    """A count and its word, such as "1 request" and "2000 requests"."""
    return f"{count} {plural(count, one, several)}"


def grouped(count: int, one: str, several: str = "") -> str:
    """The same with thousands apart: "2,000 requests"."""
    return f"{count:,} {plural(count, one, several)}"
