"""What steps have beside tokens, which takes time: LoRA adapters, and what an encoder computes."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from llmsim import _native
from llmsim.core import Workload
from llmsim.emulation.in_engine.channel import row_of
from llmsim.lowering import LoweredGroup
from llmsim.workload.content import adapter_numbers, numbered_inputs

Image = tuple[int, int, int]
"""First token, tokens and a number of the content of an encoder input."""
Encodes = Mapping[str, Sequence[int]]
"""What a step encodes: places of a request's inputs, by its name."""
_NO_ADAPTERS = [0] * 6


def adapters_of(workload: Workload) -> tuple[str, ...]:
    """The names of its adapters, of which the first has number 1."""
    return tuple(name for name in dict.fromkeys(workload.adapter or ()) if name)


def images_of(workload: Workload) -> list[tuple[Image, ...]]:
    """By row, its encoder inputs."""
    rows = workload.encoder_inputs or []
    numbered = numbered_inputs(rows)
    return [tuple(islice(numbered, len(row))) for row in rows]


class StepCounts:
    """What the steps of one group have (`BatchRunner.run`)."""

    def __init__(self, group: LoweredGroup, workload: Workload) -> None:
        scheduler = group.scheduler
        assert scheduler is not None, "engine_stages looked"
        uses_slots = scheduler.lora.slots > 0 and workload.adapter is not None
        self._slots = _native.LoraSlots(scheduler.lora) if uses_slots else None
        self._adapters = adapter_numbers(workload.adapter or ()).tolist()
        self._pair_tokens: int = scheduler.encoder.pair_tokens
        """0: the time of its encoder is not modelled."""
        self._images = images_of(workload)

    def begin_step(self, items: list[list[Any]], encodes: Encodes) -> list[int]:
        """Those of a step of these items (`Channel.step`)."""
        images = self._encoded(encodes) if self._pair_tokens else []
        if self._slots is None:
            return [*_NO_ADAPTERS, *images] if images else []
        numbers = [self._adapters[row_of(item[0])] for item in items]
        used = [
            (number, item[1], 1 + item[3])
            for number, item in zip(numbers, items, strict=True)
            if number
        ]
        return [*self._slots.begin_step(used), *images]

    def _encoded(self, encodes: Encodes) -> list[int]:
        """Tokens, and pairs of tokens of each input, by the tokens that one input has at most."""
        tokens = [
            self._images[row_of(name)][place][1]
            for name, places in encodes.items()
            for place in places
        ]
        pairs = sum(one * one for one in tokens)
        return [sum(tokens), -(-pairs // self._pair_tokens)] if tokens else []


def no_counts(items: list[list[Any]], encodes: Encodes) -> list[int]:
    """Of requests with neither adapters nor encoder inputs (`StepCounts.begin_step`)."""
    return []
