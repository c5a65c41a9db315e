"""What grouped experts multiply and move for the tokens of a step, and the rates that measured rows
of them reach.

Rows of the database were timed with tokens that take all experts in turn. Tokens that choose at
random touch fewer experts while they are few, and fill more tiles of rows when they are many: the
last tile of each expert is half empty on average.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GATED, PLAIN = 3, 2
"""Matrices of one expert: gate, up and down, or up and down alone."""
UNPADDED = 1
"""Rows of a tile where a kernel multiplies none but those that tokens ask for."""
LEAST_TILE_ROWS = 16
MARLIN_TILE_ROWS = 64
MOST_TILE_ROWS = {"fp8_block": 64, "int4_wo": MARLIN_TILE_ROWS}
KERNEL_TILE_ROWS = {"trtllm": 64, "marlin": MARLIN_TILE_ROWS}
MOST_TILE_ROWS_ELSE = 128
"""Rows of one expert that a thread block multiplies at most: by the tables' dtype, by what a
kernel's name holds, and for others.
Of vLLM 0.24's tuned files of at least 64 experts on Hopper, 27 of 30 have 128 rows at 4,096 tokens
in bf16 and 13 of 16 with one scale of fp8, while all 11 with blocks of scales have 64. Marlin, a
kernel of weights of 4 bits, has 64 at most, and so has TensorRT-LLM's on Blackwell, for which
FlashInfer clips the rows of a tile to 8 to 64.
"""
CERTAIN_DEVIATIONS = 6.0
"""Standard deviations beyond which a tile is full, or not begun, for certain."""
OUTPUT_BYTES, WRITTEN_AND_READ = 2, 2
"""Bytes of an element that an expert puts out, and how often it passes the memory: the kernel
writes a row for each pair of token and expert, and the sum over the experts of a token reads it.
"""
LEAST_PRODUCTS = 0.2
"""Least share of a measured time that is taken for products, should outputs explain the rest."""


class MoeShape(Struct, frozen=True):
    """Shape of one measured series: whole-model sizes, and how they were split."""

    hidden: int
    inter: int
    topk: int
    experts: int
    tp: int
    ep: int
    matrices: int = GATED
    always: int = 0
    """Shared experts in the same kernel, on ranks that hold all experts: every token takes them."""

    @property
    def expert_weights(self) -> float:
        """Weights of one expert on one rank."""
        return self.matrices * self.hidden * self.inter / self.tp

    def touched(self, tokens: Floats) -> Floats:
        """Experts of one rank that tokens which choose at random touch, by expectation."""
        chosen = self.experts / self.ep * (1.0 - (1.0 - self.topk / self.experts) ** tokens)
        return chosen + self.always * (tokens > 0)

    def touched_in_turn(self, tokens: Floats) -> Floats:
        """Those that tokens touch whose choices take all experts in turn, as "balanced" rows were
        measured.
        """
        return self._chosen_in_turn(tokens) + self.always * (tokens > 0)

    def _chosen_in_turn(self, tokens: Floats) -> Floats:
        return np.minimum(self.experts, tokens * self.topk) / self.ep

    def pairs(self, tokens: Floats) -> Floats:
        """Pairs of a token and one of its experts on one rank."""
        return tokens * self.topk / self.ep + tokens * self.always

    def padded(self, tokens: Floats, most_tile_rows: int) -> Floats:
        """Rows that one rank multiplies for tokens which choose at random, by expectation.

        An expert with R tokens takes a tile of T rows for each j >= 0 with R > j T. R is binomial;
        beyond the first tile it is taken as normal, with half a token for its steps.
        """
        if most_tile_rows == UNPADDED:
            return self.pairs(tokens)
        chance = self.topk / self.experts
        mean, tile = tokens * chance, self._tile_rows(tokens, most_tile_rows)
        deviation = np.sqrt(np.maximum(mean * (1.0 - chance), 1e-12))
        full = np.maximum(np.floor((mean - CERTAIN_DEVIATIONS * deviation) / tile), 0.0)
        begun = 1.0 - (1.0 - chance) ** tokens
        tiles = np.maximum(full, begun)
        doubtful = np.ceil(2.0 * CERTAIN_DEVIATIONS * deviation / tile).max(initial=0.0)
        for beyond in range(int(doubtful) + 1):
            before = np.maximum(full, 1.0) + beyond
            tiles = tiles + normal_share_below((mean - before * tile - 0.5) / deviation)
        return self.experts / self.ep * tiles * tile + self._padded_always(tokens, tile)

    def padded_in_turn(self, tokens: Floats, most_tile_rows: int) -> Floats:
        """Those of tokens whose choices take all experts in turn."""
        if most_tile_rows == UNPADDED:
            return self.pairs(tokens)
        tile, chosen = self._tile_rows(tokens, most_tile_rows), self._chosen_in_turn(tokens)
        rows = tokens * self.topk / self.ep / np.maximum(chosen, 1.0 / self.ep)
        return chosen * np.ceil(rows / tile) * tile + self._padded_always(tokens, tile)

    def _padded_always(self, tokens: Floats, tile: Floats) -> Floats:
        """Rows of the shared experts, in tiles as the kernel has them for the others."""
        return self.always * np.ceil(tokens / tile) * tile

    def _tile_rows(self, tokens: Floats, most: int) -> Floats:
        """Rows of a tile: the power of two that holds the mean tokens of an expert, in limits."""
        mean = np.maximum(tokens * self.topk / self.experts, 1.0)
        return np.clip(2.0 ** np.ceil(np.log2(mean)), LEAST_TILE_ROWS, most)


class GroupedWork(Struct, frozen=True):
    """What tokens ask of one rank; each array has one value for each count of tokens."""

    weight_bytes: Floats
    flops: Floats
    output_bytes: Floats

    @classmethod
    def at_random(
        cls, shape: MoeShape, tokens: Floats, most_tile_rows: int, element_bytes: float
    ) -> GroupedWork:
        """Of tokens that choose their experts at random, by expectation."""
        touched, rows = shape.touched(tokens), shape.padded(tokens, most_tile_rows)
        return cls._of(shape, tokens, touched, rows, element_bytes)

    @classmethod
    def in_turn(
        cls, shape: MoeShape, tokens: Floats, most_tile_rows: int, element_bytes: float
    ) -> GroupedWork:
        """Of tokens whose choices take all experts in turn."""
        touched, rows = shape.touched_in_turn(tokens), shape.padded_in_turn(tokens, most_tile_rows)
        return cls._of(shape, tokens, touched, rows, element_bytes)

    @classmethod
    def _of(
        cls, shape: MoeShape, tokens: Floats, touched: Floats, rows: Floats, element_bytes: float
    ) -> GroupedWork:
        return cls(
            touched * shape.expert_weights * element_bytes,
            rows * 2 * shape.expert_weights,
            shape.pairs(tokens) * shape.hidden * OUTPUT_BYTES * WRITTEN_AND_READ,
        )


class ReachedRates(Struct, frozen=True):
    """Rates that measured experts reach, in units per microsecond: the best over their rows."""

    weight_bytes: float
    flops: float
    output_bytes: float

    @classmethod
    def of_rows(cls, work: GroupedWork, times_us: Floats, bytes_per_s: float) -> ReachedRates:
        """Outputs pass the memory at its bandwidth; the rest of each time is for the products."""
        output_bytes_per_us = bytes_per_s * 1e-6
        rest_us = times_us - work.output_bytes / output_bytes_per_us
        products_us = np.maximum(rest_us, LEAST_PRODUCTS * times_us)
        return cls(
            float((work.weight_bytes / products_us).max()),
            float((work.flops / products_us).max()),
            output_bytes_per_us,
        )

    def us(self, work: GroupedWork) -> Floats:
        """Roofline microseconds: weights or operations, then outputs."""
        products = np.maximum(work.weight_bytes / self.weight_bytes, work.flops / self.flops)
        return np.asarray(products + work.output_bytes / self.output_bytes)


def tile_rows_of(dtype: str, kernel: str) -> int:
    """Rows of one expert that a thread block multiplies at most, by a table's dtype and kernel."""
    of_kernel = (rows for name, rows in KERNEL_TILE_ROWS.items() if name in kernel)
    return next(of_kernel, MOST_TILE_ROWS.get(dtype, MOST_TILE_ROWS_ELSE))


def normal_share_below(deviations: Floats) -> Floats:
    """The standard normal distribution function, within 1e-7 (Abramowitz and Stegun 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(deviations))
    series = np.polyval((1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530, 0.0), t)
    beyond = np.exp(-0.5 * deviations * deviations) / np.sqrt(2.0 * np.pi) * series
    return np.asarray(np.where(deviations < 0.0, beyond, 1.0 - beyond))
