"""Dates and times as ns since 1970: one at a time for any ISO 8601 text, or a whole column of the
usual shape.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64

_DIGITS = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])
_SEPARATORS = ((4, b"-"), (7, b"-"), (13, b":"), (16, b":"))
_PLAIN = 19
"""Characters of 2023-11-16T18:15:46."""


def timestamp_ns(text: str, minutes: dict[str, int]) -> int:
    """ns since 1970 of an ISO date and time (UTC where it names no zone), exact to the ns;
    `minutes` remembers the beginnings of minutes. Raises ValueError.
    """
    minute, seconds = text[:17], text[17:]
    if "+" in seconds or "-" in seconds or "Z" in seconds:
        at = max(seconds.find("+"), seconds.find("-"), seconds.find("Z"))
        minute, seconds = minute + seconds[at:], seconds[:at]
    begin = minutes.get(minute)
    if begin is None:
        moment = datetime.fromisoformat(minute[:17] + "00" + minute[17:])
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        begin = minutes[minute] = round(moment.timestamp()) * 10**9
    whole, _, fraction = seconds.partition(".")
    if len(whole) != 2 or not 0 <= int(whole) <= 60:
        raise ValueError
    return begin + int(whole) * 10**9 + int(fraction[:9].ljust(9, "0") or 0)


def all_timestamps_ns(texts: Sequence[str]) -> Int64 | None:
    """ns since 1970 of texts like 2023-11-16T18:15:46.6805900+01:00, exact to the ns: a blank may
    stand for the T, fraction and zone may be missing (UTC), Z is one. None where some text is not
    of that shape.
    """
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    found = np.empty(len(texts), dtype=np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        same = texts if len(rows) == len(texts) else [texts[row] for row in rows.tolist()]
        try:
            data = np.frombuffer("".join(same).encode("ascii"), dtype=np.uint8).reshape(
                len(rows), length
            )
        except UnicodeEncodeError:
            return None
        times_ns = _of_one_length(data)
        if times_ns is None:
            return None
        found[rows] = times_ns
    return found


def _of_one_length(data: NDArray[np.uint8]) -> Int64 | None:
    """Times of texts of one length, in rows; None where they are not all of the shape
    of the first.
    """
    width = data.shape[1]
    if width < _PLAIN:
        return None
    digits = data[:, _DIGITS] - np.uint8(48)
    if (digits > 9).any() or any((data[:, at] != mark[0]).any() for at, mark in _SEPARATORS):
        return None
    if not np.isin(data[:, 10], (ord("T"), ord(" "))).all():
        return None
    zone_s = _zone_s(data)
    if zone_s is None:
        return None
    offset_s, end = zone_s
    fraction_ns = _fraction_ns(data[:, _PLAIN:end])
    days_s = _clock_s(digits.astype(np.int64))
    if fraction_ns is None or days_s is None:
        return None
    times_ns: Int64 = (days_s - offset_s) * 10**9 + fraction_ns
    return times_ns


def _zone_s(data: NDArray[np.uint8]) -> tuple[Any, int] | None:
    """Seconds east of Greenwich of every row, and where the zone begins."""
    width = data.shape[1]
    last = data[:, -1]
    if (last == ord("Z")).all():
        return 0, width - 1
    if width < _PLAIN + 6 or not np.isin(data[0, -6], (ord("+"), ord("-"))):
        return 0, width
    digits = data[:, [-5, -4, -2, -1]] - np.uint8(48)
    signs = data[:, -6]
    if (
        (digits > 9).any()
        or (data[:, -3] != ord(":")).any()
        or not np.isin(signs, (ord("+"), ord("-"))).all()
    ):
        return None
    hours, minutes = (
        digits[:, 0] * np.int64(10) + digits[:, 1],
        digits[:, 2] * np.int64(10) + digits[:, 3],
    )
    if hours.max() > 23 or minutes.max() > 59:
        return None
    return np.where(signs == ord("+"), 1, -1) * (hours * 3600 + minutes * 60), width - 6


def _fraction_ns(data: NDArray[np.uint8]) -> Any:
    """Of `.6805900`: ns, what is finer cut off; 0 where there is nothing; None where it is
    something else.
    """
    if data.shape[1] == 0:
        return 0
    digits = data[:, 1:10] - np.uint8(48)
    if (
        data.shape[1] == 1
        or (data[:, 0] != ord(".")).any()
        or ((data[:, 1:] - np.uint8(48)) > 9).any()
    ):
        return None
    weights = 10 ** np.arange(8, 8 - digits.shape[1], -1, dtype=np.int64)
    return digits.astype(np.int64) @ weights


def _clock_s(digits: Int64) -> Int64 | None:
    """Seconds since 1970 of the 14 digits of year, month, day, hour, minute and second; None where
    there is no such time.
    """
    year = digits[:, :4] @ np.array([1000, 100, 10, 1])
    month, day, hour, minute, second = (
        digits[:, at] * 10 + digits[:, at + 1] for at in range(4, 14, 2)
    )
    if month.min() < 1 or month.max() > 12 or day.min() < 1 or year.min() < 1:
        return None
    if hour.max() > 23 or minute.max() > 59 or second.max() > 59:
        return None
    months = (year - 1970) * 12 + month - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + day - 1
    if (days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) != months).any():
        return None
    return days * 86_400 + hour * 3600 + minute * 60 + second  # type: ignore[no-any-return]
