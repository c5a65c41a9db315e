"""The LoRA adapters of a trace, and the slots of the devices that steps load them to."""

from collections.abc import Sequence
from typing import Any

from llmsim import _native
from llmsim.core import Workload
from llmsim.workload.content import adapter_numbers


def adapters_of(workload: Workload) -> tuple[str, ...]:
    """The names of its adapters, of which the first has number 1."""
    return tuple(name for name in dict.fromkeys(workload.adapter or ()) if name)


def numbers_of(workload: Workload) -> list[int]:
    """By row, the number of its adapter; 0: the model itself. Empty: the trace has no adapters."""
    return [] if workload.adapter is None else adapter_numbers(workload.adapter).tolist()


class AdapterSlots:
    """Where the adapters of one group are."""

    def __init__(self, config: "_native.LoraSlotsConfig", numbers: Sequence[int]) -> None:
        """`numbers`: of the adapters, by row."""
        self._slots = _native.LoraSlots(config) if config.slots and numbers else None
        self._numbers = numbers

    def begin_step(self, rows: Sequence[int], items: list[list[Any]]) -> list[int]:
        """What a step of these items (`Channel.step`) has of adapters (`BatchRunner.run`)."""
        if self._slots is None:
            return []
        numbers = (self._numbers[row] for row in rows)
        used = [
            (number, item[1], 1 + item[3])
            for number, item in zip(numbers, items, strict=True)
            if number
        ]
        return list(self._slots.begin_step(used))
