"""A model of one parameter, which computes nothing."""

from collections.abc import Iterable
from typing import Any

import torch


class LlamaForCausalLM(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of the architecture that the configuration names."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.nothing = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

    def set_eagle3_layers_to_capture(self, _: Any) -> None:
        """There are no hidden states for a drafter."""

    def load_weights(self, weights: Iterable[Any]) -> None:
        """Reads the weights and drops them."""
        for _ in weights:
            pass


class Qwen3NextForCausalLM(LlamaForCausalLM):
    """Likewise, where some layers keep states."""


EntryClass = [LlamaForCausalLM, Qwen3NextForCausalLM]
