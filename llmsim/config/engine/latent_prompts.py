"""Which prompts of multi-head latent attention an engine runs on the cached latents as they are;
the others make keys and values of what is cached first.

vLLM decides for each prompt by its new tokens (`reorder_batch_threshold` of its backends), SGLang
for all prompts of a step by what they have cached together (attention_backend_handler.py), and both
by the backend of the card. CUDA graphs of SGLang's prompts are captured on the latents.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

WIDE_BYTES = 2
"""Of a value in a KV cache of 16 bits."""
ANY = 1 << 40
"""More cached tokens than a step can have."""


class LatentPrompts(Struct, frozen=True):
    """When prompts run on the latents: each limit by itself, and 0 never."""

    new_tokens: int = 0
    """A prompt of at most so many new tokens does."""
    cached_tokens: int = 0
    """Prompts of a step that have some tokens cached, together fewer than this, do."""
    step_tokens: int = 0
    """Prompts of a step of at most so many new tokens together do."""

    @property
    def ever(self) -> bool:
        """Whether any prompt does."""
        return any(self.limits)

    @property
    def limits(self) -> tuple[int, int, int]:
        """The three limits, as the core takes them."""
        return self.new_tokens, self.cached_tokens, self.step_tokens


class LatentPromptRule(Struct, frozen=True):
    """The limits on NVIDIA's cards of one generation."""

    capability: int
    """Whole part of the compute capability."""
    new_tokens: int = 0
    cached_tokens: int = 0
    in_graphs: bool = False
    """Steps that replay a CUDA graph of prompts do, whatever is cached."""
    wide_cache: bool = False
    """Only with a KV cache of 16 bits, which the backend needs."""
    without: tuple[str, ...] = ()
    """Architectures (names in config.json) with another backend, which expands in every step."""

    def holds(self, capability: int, architectures: Collection[str], *, wide_cache: bool) -> bool:
        """Whether a card, a model and a cache are those of the rule."""
        other_model = any(name in self.without for name in architectures)
        return self.capability == capability and not other_model and wide_cache >= self.wide_cache


def latent_rules(entries: Iterable[Mapping[str, Any]]) -> tuple[LatentPromptRule, ...]:
    """The rules of an engine profile; null cached tokens stand for any number."""
    return tuple(
        LatentPromptRule(
            entry["capability"],
            entry.get("new_tokens", 0),
            ANY if entry.get("cached_tokens", 0) is None else entry.get("cached_tokens", 0),
            entry.get("in_graphs", False),
            entry.get("wide_cache", False),
            tuple(entry.get("without", ())),
        )
        for entry in entries
    )


class LatentServer(Struct, frozen=True):
    """What decides which rule holds."""

    compute_capability: float | None
    """None: no card of NVIDIA."""
    architectures: tuple[str, ...] = ()
    wide_cache: bool = True
    prefill_graph_sizes: tuple[int, ...] = ()
    """Token counts of its CUDA graphs of prompts."""


def latent_prompts(rules: Iterable[LatentPromptRule], server: LatentServer) -> LatentPrompts:
    """The limits of the first rule that holds; none without one."""
    capability = int(server.compute_capability or 0)
    for rule in rules:
        if rule.holds(capability, server.architectures, wide_cache=server.wide_cache):
            graphs = max(server.prefill_graph_sizes, default=0) if rule.in_graphs else 0
            return LatentPrompts(rule.new_tokens, rule.cached_tokens, graphs)
    return LatentPrompts()
