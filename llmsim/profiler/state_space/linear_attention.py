"""The operators of a layer that keeps a state: convolution, recurrence over a prompt, update of
states, gated norm.

`linear_attention` is the recurrence over one prompt's tokens, by tokens; `linear_state` is one
token of each of many sequences, by sequences, which is what a step of decodes runs. The projections
around them are GEMMs like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from llmsim.config.errors import InputError
from llmsim.model import LinearAttention, Operator
from llmsim.profiler.kernels.choice import first_right, relative_error
from llmsim.profiler.state_space.recurrence import Order, make_inputs
from llmsim.profiler.state_space.recurrence_kernels import KERNELS, usable_kernel

Work = Callable[[], Any]
NAMES = ("linear_conv", "linear_attention", "linear_state", "linear_norm")
ORDERS: dict[str, Order] = {"linear_attention": "scan", "linear_state": "update"}
EPSILON = 1e-6
CHECKED_TOKENS = 37


class LinearLayer:
    """Makes the work of these operators for one rank's share of a layer, in the first kernels that
    are right here.
    """

    def __init__(
        self, torch: Any, device: Any, dtype: Any, linear: LinearAttention, state_dtype: Any
    ) -> None:
        self._torch, self._device, self._dtype = torch, device, dtype
        self._linear, self._state_dtype = linear, state_dtype
        self.kernels: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        for name, order in ORDERS.items():
            self._keep(name, *usable_kernel(torch, device, dtype, linear, state_dtype, order))
        if linear.conv_kernel:
            errors = {
                "vllm": partial(self._conv_error, _vllm_conv),
                "torch": partial(self._conv_error, _torch_conv),
            }
            self._keep("linear_conv", *first_right(device, errors))
        self._keep(
            "linear_norm",
            *first_right(device, {n: partial(self._norm_error, n) for n in ("vllm", "torch")}),
        )

    def work(
        self, op: Operator, count: int, copies: Callable[[int], int], rotating: Callable[..., Work]
    ) -> Work:
        """One execution for `count` tokens or sequences; states are rotated as weights are
        (`copies` of so many bytes), but there are no more of them than layers.
        """
        if op.name in ORDERS:
            return self._recurrence(op, count, copies, rotating)
        if op.name == "linear_conv":
            maker = {"vllm": _vllm_conv, "torch": _torch_conv}[self.kernels["linear_conv"]]
            return maker(self._torch, *self._conv_inputs(count))
        return self._norm(self.kernels["linear_norm"], *self._norm_inputs(count))

    def _keep(self, operator: str, name: str, reasons: dict[str, str]) -> None:
        if not name:
            raise InputError(f"no kernel of {operator} works here: {'; '.join(reasons.values())}")
        self.kernels[operator] = name
        self.reasons |= {f"{operator} {kernel}": why for kernel, why in reasons.items()}

    def _recurrence(
        self, op: Operator, count: int, copies: Callable[[int], int], rotating: Callable[..., Work]
    ) -> Work:
        torch, order = self._torch, ORDERS[op.name]
        sequences = 1 if order == "scan" else count
        first = make_inputs(
            torch, self._device, self._dtype, self._linear, count, sequences, self._state_dtype
        )
        layers = min(copies(first.state.numel() * first.state.element_size()), op.repeat)
        inputs = [first, *(replace(first, state=first.state.clone()) for _ in range(layers - 1))]
        maker = KERNELS[self._linear.kind, order][self.kernels[op.name]]
        return rotating(lambda call: call(), [maker(torch, each) for each in inputs])

    def _random(self, *shape: int) -> Any:
        return self._torch.randn(*shape, device=self._device, dtype=self._dtype) * 0.5

    def _conv_inputs(self, tokens: int) -> tuple[Any, Any, Any, Any]:
        """Inputs (tokens, channels), weights (channels, taps), bias, and the inputs before these in
        slots 0 and 1.
        """
        channels, taps = self._linear.conv_channels, self._linear.conv_kernel
        bias = self._random(channels) if self._linear.conv_bias else None
        return (
            self._random(tokens, channels),
            self._random(channels, taps),
            bias,
            self._random(2, taps - 1, channels),
        )

    def _conv_error(self, maker: Callable[..., Work]) -> float:
        x, weight, bias, before = self._conv_inputs(CHECKED_TOKENS)
        seen, taps = self._torch.cat((before[1], x)).float(), weight.shape[1]
        wanted = sum(seen[tap : tap + len(x)] * weight[:, tap].float() for tap in range(taps))
        if bias is not None:
            wanted = wanted + bias.float()
        return relative_error(
            maker(self._torch, x, weight, bias, before)(), self._torch.nn.functional.silu(wanted)
        )

    def _norm_groups(self) -> int:
        """Elements that share a norm: a head's, or those of a group of heads."""
        linear = self._linear
        if linear.norm == "head":
            return linear.value_dim
        values = linear.value_heads * linear.value_dim
        return values // linear.key_heads if linear.kind == "state_space" else values

    def _norm_inputs(self, tokens: int) -> tuple[Any, Any, Any]:
        linear = self._linear
        values = linear.value_heads * linear.value_dim
        weight = self._random(linear.norm_weights) + 1 if linear.norm_weights else None
        return self._random(tokens, values), self._random(tokens, values), weight

    def _norm(self, kernel: str, x: Any, gate: Any, weight: Any) -> Work:
        """Norm and gate: a gated delta net gates what was normed, a state space norms what was
        gated.
        """
        linear, functional = self._linear, self._torch.nn.functional
        group, first = self._norm_groups(), linear.kind != "state_space"
        if weight is None:
            if kernel != "torch":
                raise ValueError("there is nothing to norm")
            return lambda: x * functional.silu(gate)
        if kernel == "vllm":
            from vllm.model_executor.layers.mamba.ops.layernorm_gated import rms_norm_gated

            if linear.norm == "head":
                x, gate = x.view(-1, group), gate.view(-1, group)
            return lambda: rms_norm_gated(
                x, weight, None, z=gate, eps=EPSILON, group_size=group, norm_before_gate=first
            ).view(-1, linear.value_heads * linear.value_dim)

        def run() -> Any:
            y = x if first else x * functional.silu(gate)
            y = functional.rms_norm(y.unflatten(-1, (-1, group)), (group,), eps=EPSILON)
            y = (y if linear.norm == "head" else y.flatten(-2)) * weight
            y = y.flatten(-2) if linear.norm == "head" else y
            return y * functional.silu(gate) if first else y

        return run

    def _norm_error(self, kernel: str) -> float:
        x, gate, weight = self._norm_inputs(CHECKED_TOKENS)
        y, z, group = x.float(), gate.float() * gate.float().sigmoid(), self._norm_groups()
        after = self._linear.kind == "state_space" or weight is None
        if after:
            y = y * z
        if weight is not None:
            parts = y.unflatten(-1, (-1, group))
            y = (parts * (parts.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt()).flatten(-2)
            y = y * weight.float().repeat(y.shape[-1] // len(weight))
        return relative_error(self._norm(kernel, x, gate, weight)(), y if after else y * z)


def _torch_conv(torch: Any, x: Any, weight: Any, bias: Any, before: Any) -> Work:
    """Inputs behind the ones that were kept, one filter for each channel; the last ones are kept in
    turn.
    """
    functional, kept = torch.nn.functional, len(before[1])

    def run() -> Any:
        seen = torch.cat((before[1], x)).t()[None]
        before[0] = seen[0, :, seen.shape[-1] - kept :].t()
        return functional.silu(
            functional.conv1d(seen, weight[:, None], bias, groups=len(weight))[0].t()
        )

    return run


def _vllm_conv(torch: Any, x: Any, weight: Any, bias: Any, before: Any) -> Work:
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn
    from vllm.v1.attention.backends.utils import compute_causal_conv1d_metadata

    ends = torch.tensor([0, len(x)], dtype=torch.int32)
    nums, batch, offsets = compute_causal_conv1d_metadata(ends, device=x.device)
    metadata = SimpleNamespace(nums_dict=nums, batch_ptr=batch, token_chunk_offset_ptr=offsets)
    ends, slot = ends.to(x.device), torch.ones(1, dtype=torch.int32, device=x.device)
    goes_on = torch.ones(1, dtype=torch.bool, device=x.device)

    def run() -> Any:
        return causal_conv1d_fn(
            x.t(),
            weight,
            bias,
            conv_states=before.transpose(1, 2),
            query_start_loc=ends,
            cache_indices=slot,
            has_initial_state=goes_on,
            activation="silu",
            metadata=metadata,
        ).t()

    return run
