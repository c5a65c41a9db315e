"""Where the time of a transformers engine's step goes: marks at the borders of its model's modules.

A bundle's rows are operators; a step on a CPU is also the Python between them. Marks divide a step
without a gap: from one to the next the time belongs to one place, so the places add up to the step.
What runs between two modules (views, residuals, the calls themselves) belongs to the operator whose
place is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

OUTSIDE, MASK = "outside", "mask"
"""Places that are no operators: what a step takes besides, and the mask (rows of attention have a
share of it).
"""
GATED = "gate_up_proj"
BORDERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        r"(embed_tokens|wte|wpe|embed_positions)": ("embedding", OUTSIDE),
        r"(layers|h)\.\d+": ("layernorm", "layernorm"),
        r"(input_layernorm|ln_1)": ("layernorm", "qkv_proj"),
        r"(q_proj|k_proj)": ("qkv_proj", "qkv_proj"),
        r"(v_proj|qkv_proj|query_key_value|c_attn)": ("qkv_proj", "rotary_emb"),
        r"(q_norm|k_norm)": ("qk_norm", "qkv_proj"),
        r"(o_proj|attn\.c_proj|self_attn\.dense|self_attn\.out_proj)": ("o_proj", "layernorm"),
        r"(post_attention_layernorm|ln_2)": ("layernorm", GATED),
        r"(gate_proj|up_proj|gate_up_proj)": (GATED, "act_fn"),
        r"(c_fc|fc1|dense_h_to_4h)": ("up_proj", "act_fn"),
        r"(down_proj|fc2|mlp\.c_proj|dense_4h_to_h)": ("down_proj", "layernorm"),
        r"(mlp|block_sparse_moe)\.(gate|router)": ("moe_gate", "moe_gate"),
        r"(mlp|block_sparse_moe)\.experts": ("moe", "layernorm"),
        r"(model|transformer)\.(norm|ln_f|final_layernorm)": ("final_layernorm", "lm_head"),
        r"lm_head": ("lm_head", "sampler"),
    }
)
"""End of a module's path -> the place that opens as it is entered, and the one that opens as it is
left.
"""


class Places:
    """Adds up seconds by place; `now` is the clock of everything else that is recorded."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._open, self._since = OUTSIDE, now()
        self._spent: dict[str, float] = {}
        self.marks = 0
        self.cost_s = 0.0
        """Seconds of a mark, which are taken off every place; at most half of it, since they are a
        noisy difference.
        """

    def mark(self, place: str) -> None:
        """From here on the time belongs to `place`."""
        time = self._now()
        passed = time - self._since
        self._spent[self._open] = self._spent.get(self._open, 0.0) + max(
            passed - self.cost_s, passed / 2
        )
        self._open, self._since = place, time
        self.marks += 1

    def taken(self) -> dict[str, float]:
        """Seconds by place since the last call; OUTSIDE is open afterwards."""
        self.mark(OUTSIDE)
        spent, self._spent = self._spent, {}
        return spent

    def watched(self, function: Callable[..., Any], entry: str, leave: str) -> Callable[..., Any]:
        """`function` between two marks."""
        mark = self.mark

        def run(*arguments: Any, **named: Any) -> Any:
            mark(entry)
            result = function(*arguments, **named)
            mark(leave)
            return result

        return run


@contextmanager
def marked(model: Any, places: Places, *, gated: bool) -> Iterator[None]:
    """Marks in all modules of a model that have a place, in its attention and in the making of
    masks, until left.
    """
    import transformers.generation.continuous_batching.input_outputs as inputs
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as ATTENTION

    def between_marks(path: str, forward: Callable[..., Any]) -> Callable[..., Any] | None:
        border = border_of(path, gated=gated)
        return None if border is None else places.watched(forward, *border)

    kind, build = model.config._attn_implementation, inputs.build_attention_mask
    ATTENTION[kind] = places.watched(ATTENTION[kind], "attention", "attention")
    inputs.build_attention_mask = places.watched(build, MASK, OUTSIDE)
    try:
        with wrapped(model, between_marks):
            yield
    finally:
        inputs.build_attention_mask = build
        del ATTENTION[kind]


@contextmanager
def wrapped(
    model: Any, wrapper: Callable[[str, Callable[..., Any]], Callable[..., Any] | None]
) -> Iterator[None]:  # fmt: skip
    """Each module's `forward` as `wrapper` makes it of (path, forward), where it makes one, until
    left.
    """
    changed = []
    for path, module in model.named_modules():
        forward = wrapper(path, module.forward)
        if forward is not None:
            changed.append((module, module.__dict__.get("forward")))
            module.forward = forward
    try:
        yield
    finally:
        for module, before in changed:
            del module.forward
            if before is not None:
                module.forward = before


def border_of(path: str, *, gated: bool) -> tuple[str, str] | None:
    """The places around a module; `gated`: its MLP has a gate and up projection, which a bundle has
    as one row.
    """
    for end, border in BORDERS.items():
        if re.search(rf"(^|\.){end}$", path):
            entry, leave = (
                "up_proj" if place == GATED and not gated else place for place in border
            )
            return entry, leave
    return None
