"""Cost source: a step's time as a linear function of its tokens, with coefficients trained
elsewhere (BLIS).

    step = beta0 + beta1 * prompt tokens computed + beta2 * decode tokens            (microseconds)

before it alpha0 + alpha1 * prompt tokens between a request's arrival and the queue, and after it
alpha2 for each output token, which its client waits for and the next step does not. The file is
{"beta": [b0, b1, b2], "alpha": [a0, a1, a2]}.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite, json_value
from llmsim.core import Provenance
from llmsim.costs.source import (
    AttentionCost,
    CostRequest,
    CostSource,
    Curve,
    OpCost,
    SplitAttention,
    SplitGrid,
)
from llmsim.costs.sources.csv_tables import read_text
from llmsim.model import Attention

if TYPE_CHECKING:
    from llmsim.model import Operator

PREFIX = "blackbox:"
PS_PER_US = 10**6


class Coefficients(Struct, frozen=True):
    """Picoseconds; `beta` of a step, of a prompt token, of a decode token."""

    beta_ps: tuple[int, int, int]
    queueing_ps: int = 0
    queueing_per_token_ps: int = 0
    """Of the prompt."""
    output_ps: int = 0
    """Of each output token."""


def read_coefficients(path: Path) -> Coefficients:
    """The coefficients of a file; InputError for what is not there or is no number."""
    document = json_value(read_text(path), path, '{"beta": [b0, b1, b2], "alpha": [a0, a1, a2]}')
    if not isinstance(document, dict):
        raise InputError(f'{path}: must be an object with "beta" and "alpha"', file=str(path))
    beta = _numbers(document.get("beta"), "beta", 3, path)
    alpha = _numbers(document.get("alpha", [0.0]), "alpha", 1, path)
    first, prompt, decode = (round(value * PS_PER_US) for value in beta[:3])
    overheads = [round(value * PS_PER_US) for value in alpha[:3]]
    return Coefficients((first, prompt, decode), *overheads)


def _numbers(value: object, name: str, least: int, path: Path) -> list[float]:
    numbers = [finite(one) for one in value] if isinstance(value, list) else []
    good = [one for one in numbers if one is not None and 0 <= one < 1e9]
    if len(numbers) < least or len(good) < len(numbers):
        raise InputError(
            f'{path}: "{name}" must be a list of at least {least} numbers of microseconds, none '
            "negative",
            file=str(path),
        )
    return good


class BlackboxSource(CostSource):
    """Every operator is inside one number per step; attention carries what depends on the tokens'
    kinds.
    """

    name = "blackbox"
    kind = "plug-in"
    prices_collectives = True

    def __init__(self, request: CostRequest) -> None:
        self._path = Path(request.plugin.removeprefix(PREFIX))
        self._coefficients = read_coefficients(self._path)
        self._request = request
        self._label = f"linear blackbox of {self._path}"

    def operator(self, op: Operator, last: int) -> Curve | None:
        """Nothing of its own, collectives included."""
        del op
        zero = np.zeros(last + 1, dtype=np.int64)
        return Curve(zero, np.full(last + 1, Provenance.ANALYTIC, dtype=np.uint8), self._label)

    def attention(self, op: Operator) -> AttentionCost | None:
        """beta1 for each prompt token, beta2 for each decode, spread over the layers of the first
        kind.
        """
        _, prompt, decode = self._coefficients.beta_ps
        if op.name != next(
            one.name for one in self._request.operators if isinstance(one, Attention)
        ):
            prompt = decode = 0
        tokens = np.array([0, self._request.table_tokens + 1], dtype=np.int64)
        contexts = np.array([0, 1], dtype=np.int64)
        marks = np.full((2, 2), Provenance.ANALYTIC, dtype=np.uint8)
        flat = np.ones((1, 2), dtype=np.int64)
        prompts, decodes = (tokens[:, None] * each * flat // op.repeat for each in (prompt, decode))
        grid = SplitGrid(tokens, contexts, prompts, marks, tokens, contexts, decodes, marks, 0)
        return SplitAttention(
            repeat=op.repeat,
            grid=grid,
            skew_ps_per_token_q20=0,
            source=self._label,
            skew_source="none: the blackbox does not see lengths",
        )

    def extra_ops(self) -> list[OpCost]:
        """beta0, once per step."""
        ps = np.full(self._request.table_tokens + 1, self._coefficients.beta_ps[0], dtype=np.int64)
        ps[0] = 0
        marks = np.full(len(ps), Provenance.ANALYTIC, dtype=np.uint8)
        return [OpCost("step", "layer", 1, "tokens", ps, marks, self._label)]

    def notes(self) -> list[str]:
        """Where its overheads went."""
        known = self._coefficients
        alpha_us = [
            ps / PS_PER_US
            for ps in (known.queueing_ps, known.queueing_per_token_ps, known.output_ps)
        ]
        notes = [
            f"{self._label}: its alpha0, {alpha_us[0]:g} us, is the time between arrival and queue"
        ]
        if alpha_us[1]:
            notes[0] += f", and its alpha1, {alpha_us[1]:g} us, more of it for each prompt token"
        if alpha_us[2]:
            notes.append(
                f"{self._label}: its alpha2, {alpha_us[2]:g} us, delays every output token for "
                "its client, not for the"
                " engine; sessions and clients in a closed loop go on when the engine is done"
            )
        return notes
