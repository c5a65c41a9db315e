"""What stands before the summary: where each group's device memory goes, and the engine options
that hold for it.
"""

import textwrap
from typing import TYPE_CHECKING, Any

from llmsim.core import PS_PER_MS, PS_PER_S, PS_PER_US

if TYPE_CHECKING:
    from llmsim.lowering import LoweredDeployment, LoweredGroup

WIDTH = 118
UNITS = ((PS_PER_S, "s"), (PS_PER_MS, "ms"), (PS_PER_US, "us"), (1000, "ns"), (1, "ps"))


def ledgers(lowered: "LoweredDeployment") -> str:
    """The memory ledger (GiB per device) and the engine's options of each distinct group."""
    texts: dict[str, int] = {}
    for group in lowered.groups:
        memory = [f"  {label}: {size / (1 << 30):+.3f} GiB" for label, size in group.ledger.lines]
        about = f"({group.info.model_name} on {group.info.hardware}):"
        texts.setdefault("\n".join((about, *memory, *_options(group))), group.info.index)
    return "".join(f"Memory per device, group {index} {text}\n" for text, index in texts.items())


def _options(group: "LoweredGroup") -> list[str]:
    """By who gave them; those that are off because nobody asked for them are left to
    the manifest.
    """
    by_origin: dict[str, list[str]] = {}
    for name, value in group.engine.shown().items():
        origin = group.engine.origin.get(name, "default")
        if name == "cuda_graph_sizes" or (origin == "default" and not value):
            continue
        by_origin.setdefault(origin, []).append(_option(name, value))
    return [
        line
        for origin, options in by_origin.items()
        for line in textwrap.wrap(
            f"options ({origin}): {', '.join(options)}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _option(name: str, value: Any) -> str:
    """`name=value`; times in the largest unit that they reach, as api_latency=1.5 ms."""
    if not name.endswith("_ps") or not isinstance(value, int):
        return f"{name}={value}"
    if value == 0:
        return f"{name.removesuffix('_ps')}=0"
    size, unit = next((size, unit) for size, unit in UNITS if abs(value) >= size)
    return f"{name.removesuffix('_ps')}={value / size:g} {unit}"
