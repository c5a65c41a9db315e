"""vLLM's quick all-reduce on AMD's cards: which vectors it takes, and with which messages.

Source: vLLM 0.33, distributed/device_communicators/quick_all_reduce.py. It comes before all other
all-reduces, whatever they would take.
"""

from math import inf

import numpy as np
from msgspec import Struct

from llmsim.costs.nccl.plans import Chosen, Plan, Way
from llmsim.costs.nccl.protocols import QUICK, Floats, Machine

KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
RANKS = (2, 4, 8)
"""Numbers of ranks among which vLLM takes it."""
RANKS_OF_INT3 = (2,)
PLAIN = "FP"
"""Messages in the type of the vector."""
QUANTIZATIONS = (PLAIN, "INT8", "INT6", "INT4", "INT3")
MOST_BYTES = 1 << 31
"""The default of the largest vector (csrc/rocm/quickreduce/quick_reduce.h)."""
MULTIPLE_OF_BYTES = 16
FROM_MEGABYTES = {
    ("float16", 2): (1, 2, 2, 1, 1),
    ("float16", 4): (1, 16, 4, 2, 2),
    ("float16", 8): (16, 4, 4, 2, 2),
    ("bfloat16", 2): (2, 8, 8, 8, 8),
    ("bfloat16", 4): (8, 64, 64, 16, 16),
    ("bfloat16", 8): (16, 2048, 2048, 2048, 2048),
}
"""By the kernels' type and ranks: the smallest vector of each quantisation, `_QR_MIN_SIZE`."""


class QuickReduce(Struct, frozen=True):
    """How an engine was started; None: the engine's default."""

    quantization: str
    kernels: str
    """Their type: "float16", or "bfloat16" where vectors in it are not converted."""
    min_size_bytes_mb: int | None = None
    max_size_bytes_mb: int | None = None
    quantization_min_size_kb: int | None = None

    def over(self, chosen: Chosen, machine: Machine, sizes: Floats, ranks: int) -> Chosen:
        """The plan of each size where this all-reduce comes before those that were chosen."""
        for plan in self._plans(machine, sizes, ranks):
            chosen = chosen.unless(plan)
        return chosen

    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks among which it is on."""
        return RANKS_OF_INT3 if self.quantization == "INT3" else RANKS

    def _plans(self, machine: Machine, sizes: Floats, ranks: int) -> list[Plan]:
        """Its kernels: plain and quantised; inf microseconds where one does not take a vector."""
        if ranks not in self.ranks():
            return []
        plain = sizes < (self.quantization_min_size_kb or 0) * KILOBYTE
        plans = []
        for protocol in machine.quick.get(self.kernels, ()):
            if protocol.name not in (PLAIN, self.quantization):
                continue
            quantised = protocol.name != PLAIN
            mine = ~plain if quantised else plain | (self.quantization == PLAIN)
            us = protocol.us("all_reduce", sizes, ranks)
            taken = np.where(mine & self._takes(sizes, ranks), us, inf)
            plans.append(Plan(Way(QUICK, protocol.name, library="vLLM"), taken))
        return plans

    def _takes(self, sizes: Floats, ranks: int) -> "np.typing.NDArray[np.bool_]":
        least, most = self.min_size_bytes_mb, self.max_size_bytes_mb
        if least is None:
            by_quantization = FROM_MEGABYTES[self.kernels, ranks]
            least = by_quantization[QUANTIZATIONS.index(self.quantization)]
        most_bytes = MOST_BYTES if most is None else most * MEGABYTE
        in_range = (sizes >= least * MEGABYTE) & (sizes <= most_bytes)
        return np.asarray(in_range & (sizes % MULTIPLE_OF_BYTES == 0))
