"""Fields of an instance that have several names: the same value under any of them."""

from collections.abc import Sequence

from llmsim.config.cluster_file.vllm_names import SIZES
from llmsim.config.engine.options import SAME_OPTION

Keys = tuple[str, ...]
"""Keys from an instance, or the section `engine`, to a field."""
MEM_UTIL = ("npu_mem", "mem_util")
OF_MEMORY = "gpu_memory_utilization"
SAME_FIELD: tuple[tuple[Keys, ...], ...] = (
    (("model_name",), ("model",)),
    *(((ours,), (vllm,)) for ours, vllm in SIZES.items()),
    *(
        (*((name,) for name in names), *((MEM_UTIL,) if first == OF_MEMORY else ()))
        for first, names in SAME_OPTION.items()
    ),
)
"""The names of each field that has several."""


def names_of(path: Sequence[str | int]) -> tuple[Keys, ...]:
    """The names of the field that a path ends with, the first name first; none for a field with one
    name.
    """
    return next(
        (names for names in SAME_FIELD if any(_ends_with(path, name) for name in names)), ()
    )


def name_in(path: Sequence[str | int]) -> Keys:
    """The keys of a path that name a field with several names; none if it has one."""
    return next((name for name in names_of(path) if _ends_with(path, name)), ())


def _ends_with(path: Sequence[str | int], name: Keys) -> bool:
    return tuple(path[-len(name) :]) == name
