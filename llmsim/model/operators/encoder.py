"""What the vision tower of a multimodal model computes before a step with images, on one rank.

A token stands for p patches. Per layer, with w its width, f the inner width of its MLP (twice that
where it is gated) and r ranks; patches of one image of t tokens see each other:

    operator            shape, or what it computes
    encoder_qkv         [p t, w] x [w, 3 w / r]
    encoder_attention   4 w (p t)^2 / r flops; in layers with windows of v patches 4 w v p t / r
    encoder_out         [p t, w / r] x [w / r, w]
    encoder_up          [p t, w] x [w, f / r]
    encoder_down        [p t, f / r] x [f / r, w]
    encoder_streams     norms, residual sums, rotary embedding and activation: (11 w + 2 f / r) p t
                        elements

Ranks sum up twice in each layer. Patches are embedded before the layers, and joined to tokens
behind them. vLLM runs the tower without graphs, in front of the text part (`_execute_mm_encoder`).
"""

from collections.abc import Iterator
from fractions import Fraction

from llmsim.model.dtypes import dtype_bytes, short_dtype
from llmsim.model.layout import Layout
from llmsim.model.operator import (
    Elementwise,
    EncoderAttention,
    Gemm,
    Operator,
    collective,
)
from llmsim.model.types import Dtypes
from llmsim.model.vision import VisionShapes, VisionTower

STREAM_KERNELS = 5
"""Two norms with their residual sums, the rotary embedding of both, and the activation."""
_STREAMED_WIDTHS = 11
"""Widths that they read and write."""


class EncoderOperators:
    """The operators of one tower on one rank."""

    def __init__(
        self, tower: VisionTower, shapes: VisionShapes, layout: Layout, dtypes: Dtypes
    ) -> None:
        self._shapes, self._ranks = shapes, tower.ranks(layout)
        self._dtype = short_dtype(dtypes.activation)
        self._size = int(dtype_bytes(dtypes.activation))

    def of_step(self, pair_tokens: int) -> tuple[Operator, ...]:
        """All of them, in order; `pair_tokens`: what a unit of `encoder_pairs` is divided by."""
        shapes, layers = self._shapes, self._shapes.layers
        first = self._gemm("encoder_patch", shapes.patch_inputs, shapes.width, 1)
        return (first, *self._layer(layers, pair_tokens), *self._mergers())

    def _layer(self, layers: int, pair_tokens: int) -> Iterator[Operator]:
        shapes, width, ranks = self._shapes, self._shapes.width, self._ranks
        inner = -(-shapes.inner // ranks)
        yield self._gemm("encoder_qkv", width, -(-3 * width // ranks), layers)
        yield from self._attention(pair_tokens)
        yield self._gemm("encoder_out", -(-width // ranks), width, layers)
        yield from self._sum("encoder_out_sum", width * shapes.patches_per_token, layers)
        yield self._gemm("encoder_up", width, (2 if shapes.gated else 1) * inner, layers)
        yield self._gemm("encoder_down", inner, width, layers)
        yield from self._sum("encoder_down_sum", width * shapes.patches_per_token, layers)
        streamed = _STREAMED_WIDTHS * width + (3 if shapes.gated else 2) * inner
        yield Elementwise(
            name="encoder_streams",
            repeat=layers,
            feature="encoder_tokens",
            part="prologue",
            kernels=STREAM_KERNELS,
            units=(shapes.patches_per_token, 1),
            read_bytes_per_token=streamed * self._size // 2,
            write_bytes_per_token=streamed * self._size // 2,
        )

    def _attention(self, pair_tokens: int) -> Iterator[Operator]:
        shapes = self._shapes
        flops = Fraction(4 * shapes.width, self._ranks)
        windowed = shapes.layers - shapes.full_layers
        if shapes.full_layers:
            pairs = shapes.patches_per_token**2 * pair_tokens
            yield EncoderAttention(
                name="encoder_attention",
                repeat=shapes.full_layers,
                feature="encoder_pairs",
                part="prologue",
                weight_dtype=self._dtype,
                flops_per_token=int(flops * pairs),
            )
        if windowed:
            yield EncoderAttention(
                name="encoder_window_attention",
                repeat=windowed,
                feature="encoder_tokens",
                part="prologue",
                weight_dtype=self._dtype,
                flops_per_token=int(flops * shapes.patches_per_token * shapes.window_patches),
            )

    def _mergers(self) -> Iterator[Operator]:
        """Pairs of matrices, of which the ranks cut the first by columns and the second by rows."""
        for number, (inputs, outputs) in enumerate(self._shapes.mergers):
            name, is_second = f"encoder_merger_{number}", number % 2 == 1
            cut_inputs = -(-inputs // self._ranks) if is_second else inputs
            cut_outputs = outputs if is_second else -(-outputs // self._ranks)
            yield self._gemm(name, cut_inputs, cut_outputs, 1, patches=1)
            if is_second:
                yield from self._sum(f"{name}_sum", outputs, 1)

    def _sum(self, name: str, elements_per_token: int, repeat: int) -> Iterator[Operator]:
        if self._ranks > 1:
            size = elements_per_token * self._size
            yield collective(
                name,
                "all_reduce",
                "tp",
                size,
                part="prologue",
                repeat=repeat,
                feature="encoder_tokens",
            )

    def _gemm(
        self, name: str, inputs: int, outputs: int, repeat: int, patches: int | None = None
    ) -> Gemm:
        """On so many rows for each token; None: the tower's patches."""
        rows = self._shapes.patches_per_token if patches is None else patches
        return Gemm(
            name=name,
            repeat=repeat,
            feature="encoder_tokens",
            part="prologue",
            units=(rows, 1),
            gemm_n=outputs,
            gemm_k=inputs,
            weight_dtype=self._dtype,
            weight_bytes=inputs * outputs * self._size,
            read_bytes_per_token=inputs * self._size,
            write_bytes_per_token=outputs * self._size,
            flops_per_token=2 * inputs * outputs,
        )
