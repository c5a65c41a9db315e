"""Quantised weights: how a checkpoint stores them, random ones of any shape, and what they mean in
plain numbers.

Scales are powers of two and `exact_activations` need no rounding, so every right kernel agrees with
plain float32 math on the dequantised weights, however it rounds activations or scales on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llmsim.model import ModelConfig, short_dtype

SchemeKind = Literal["fp8", "fp8_block", "int8", "mxfp4", "nvfp4", "int4", "grouped"]
"""fp8 and int8: one scale for each output, activations in the same type with one for each token;
fp8_block: one for each block, activations one for each token and block; mxfp4, nvfp4, int4: groups
along the inputs, activations wide where the device has no units for them; grouped: 8 bits in
groups, which no kernel here reads as they are.
"""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of a 4-bit float without its sign (OCP Microscaling formats, v1.0)."""
GROUPS: dict[int, SchemeKind] = {16: "nvfp4", 32: "mxfp4"}
FP8_MAX, INT8_MAX, E8M0_ZERO = 448, 127, 127


@dataclass(frozen=True)
class Scheme:
    """How the weights of some linear layers are stored."""

    kind: SchemeKind
    dtype: str
    """Short name: fp8, int8, fp4 or int4."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale; None: one for each output."""

    @property
    def packed(self) -> bool:
        """Two elements in a byte, the first in its lower half."""
        return self.dtype in ("fp4", "int4")


def scheme_of(model: ModelConfig, weight_dtype: str) -> Scheme:
    """Quantisation scheme of this layer type; defaults to one scale per output channel."""
    dtype = short_dtype(weight_dtype)
    block = model.weight_block if dtype == model.weight_dtype else None
    if dtype in ("fp8", "int8"):
        whole: SchemeKind = "fp8" if dtype == "fp8" else "int8"
        if block is None:
            return Scheme(whole, dtype)
        return Scheme("fp8_block" if dtype == "fp8" and block[0] > 1 else "grouped", dtype, block)
    if dtype == "int4":
        return Scheme("int4", dtype, block)
    group = block[1] if block is not None else 16
    return Scheme(GROUPS.get(group, "grouped"), dtype, block or (1, group))


@dataclass(frozen=True)
class Weight:
    """Quantised weights (..., outputs, inputs) and their scales (..., blocks of outputs, blocks of
    inputs).
    """

    scheme: Scheme
    data: Any
    """float8_e4m3fn, int8, or uint8 with half as many columns."""
    scale: Any
    """fp32; of MXFP4 exponents in uint8, of NVFP4 float8_e4m3fn."""
    outputs: int
    inputs: int

    def expert(self, index: int) -> Weight:
        """Of one expert."""
        return Weight(self.scheme, self.data[index], self.scale[index], self.outputs, self.inputs)

    @property
    def bytes_each(self) -> int:
        """Of weights and scales together."""
        return sum(part.numel() * part.element_size() for part in (self.data, self.scale))


def make_weight(
    torch: Any, device: Any, scheme: Scheme, outputs: int, inputs: int, *experts: int
) -> Weight:
    """Random weights of about the size of trained ones; `experts`: so many of them."""
    rows, columns = scheme.block or (1, inputs)
    scales = (*experts, -(-outputs // rows), -(-inputs // columns))
    if scheme.packed:
        data = torch.randint(
            256, (*experts, outputs, -(-inputs // 2)), dtype=torch.uint8, device=device
        )
    elif scheme.dtype == "int8":
        data = torch.randint(
            -INT8_MAX, INT8_MAX + 1, (*experts, outputs, inputs), dtype=torch.int8, device=device
        )
    else:
        data = torch.empty(*experts, outputs, inputs, device=device, dtype=torch.float8_e4m3fn)
        for one in data.view(
            -1, outputs, inputs
        ):  # wide numbers of one expert at a time fit beside all
            one.copy_(torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16) * 16)
    exponents = torch.randint(-9, -6, scales, device=device)
    if scheme.kind == "mxfp4":
        return Weight(scheme, data, (exponents + 3 + E8M0_ZERO).to(torch.uint8), outputs, inputs)
    scale = torch.exp2((exponents + (3 if scheme.packed else 0)).float())
    return Weight(
        scheme,
        data,
        scale.to(torch.float8_e4m3fn) if scheme.kind == "nvfp4" else scale,
        outputs,
        inputs,
    )


def dequantised(torch: Any, weight: Weight, dtype: Any) -> Any:
    """The weights in plain numbers."""
    scheme, data = weight.scheme, weight.data
    if scheme.packed:
        halves = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)[..., : weight.inputs]
        if scheme.dtype == "fp4":
            table = torch.tensor(
                [*E2M1, *(-value for value in E2M1)], dtype=dtype, device=data.device
            )
            values = table[halves.int()]
        else:
            values = halves.to(dtype) - 8
    else:
        values = data.to(dtype)
    scale = weight.scale
    scale = torch.exp2(scale.to(dtype) - E8M0_ZERO) if scheme.kind == "mxfp4" else scale.to(dtype)
    rows, columns = scheme.block or (1, weight.inputs)
    if rows > 1:
        scale = scale.repeat_interleave(rows, -2)[..., : weight.outputs, :]
    if columns >= weight.inputs:
        return values * scale
    return values * scale.repeat_interleave(columns, -1)[..., : weight.inputs]


def exact_activations(
    torch: Any, device: Any, dtype: Any, scheme: Scheme, tokens: int, inputs: int
) -> Any:
    """Activations that the scheme's own type holds without rounding, whatever tokens or inputs
    share a scale.
    """
    if scheme.dtype == "int8":
        x, most = torch.randint(-20, 21, (tokens, inputs), device=device).to(dtype), INT8_MAX
    elif scheme.packed:
        table = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=dtype, device=device)
        x, most = table[torch.randint(16, (tokens, inputs), device=device)], int(max(E2M1))
    else:
        x, most = (
            (torch.randn(tokens, inputs, device=device) * 40).to(torch.float8_e4m3fn).to(dtype),
            FP8_MAX,
        )
    columns = scheme.block[1] if scheme.block is not None else inputs
    x[:, :: min(columns, inputs)] = most
    return x
