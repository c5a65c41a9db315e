"""The clock that a server sustains: what a device's power limit adds to steps whose times were
measured in bursts.

Matrices switch an energy for each operation, and memory takes one for each byte; both come on top
of the idle power. A type of twice the peak rate takes half the energy for an operation. Where the
mean power over `Hardware.power_window_ms` reaches the limit, the clock falls, and with it the
voltage: an operation then switches phi^2 of its energy, and what the units limit takes 1 / phi as
long (native/program/power_limit.h).
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim import _native
from llmsim.core import Int64
from llmsim.costs import CompiledCosts, OpCost
from llmsim.costs.hardware_limits import PeakRates, peak_rates_of
from llmsim.costs.source import CostRequest
from llmsim.lowering.program import FEATURES, Placed
from llmsim.model import Attention, Hardware, Operator
from llmsim.power.traffic import weight_bytes

Floats = NDArray[np.float64]
_MW_PER_W = 1000
_PS_PER_MS = 10**9
_FJ_PER_PJ = 1000
_MILLION = 1_000_000
_ENERGY_OF = "bf16"
"""The type whose operations `Hardware.switching_fj_per_flop` is of."""


class OperationEnergy(Struct, frozen=True):
    """What one device takes for its work, on top of its idle power."""

    switching_fj_per_flop: float
    """Of matrices in bf16, at the clock of the tables."""
    traffic_fj_per_byte: float
    rates: PeakRates
    activation: str
    """The type of activations."""

    def switching_pj(self, flops: Floats, dtype: str) -> Int64:
        """Of so many operations of a type each."""
        share = self.rates.peak(_ENERGY_OF) / max(self.rates.peak(dtype), 1)
        return _whole(flops * (self.switching_fj_per_flop * share / _FJ_PER_PJ))

    def traffic_pj(self, num_bytes: Floats) -> Int64:
        """Of so many bytes each."""
        return _whole(num_bytes * (self.traffic_fj_per_byte / _FJ_PER_PJ))


class Limited(Struct, frozen=True):
    """What a data sheet says of a card's power."""

    limit_w: int
    idle_w: int
    switching_fj_per_flop: int
    traffic_fj_per_byte: int
    window_ms: int

    @classmethod
    def of(cls, sheet: Hardware | None) -> "Limited | None":
        """None: it does not say all of it."""
        if sheet is None:
            return None
        numbers = (
            sheet.tdp_w,
            sheet.idle_w,
            sheet.switching_fj_per_flop,
            sheet.traffic_fj_per_byte,
            sheet.power_window_ms,
        )
        return None if None in numbers else cls(*cast("tuple[int, int, int, int, int]", numbers))

    @property
    def source(self) -> str:
        """The numbers in words."""
        return (
            f"{self.limit_w} W over {self.window_ms} ms, idle {self.idle_w} W, "
            f"{self.switching_fj_per_flop} fJ an operation, {self.traffic_fj_per_byte} fJ a byte "
            "(data sheet)"
        )


def limit_power(
    program: "_native.Program",
    placed: Sequence[Placed],
    costs: CompiledCosts,
    request: CostRequest,
    clock_ppm: int,
) -> None:
    """Gives the program what its operators do on one device, unless the data sheet does not say, or
    no time is of bursts.

    `clock_ppm`: the clock of the tables, which a power cap may have lowered.
    """
    card, rates = Limited.of(request.hardware), peak_rates_of(request)
    if card is None or rates is None or not any(cost.in_bursts for cost in costs.ops):
        return
    energy = OperationEnergy(
        card.switching_fj_per_flop * (clock_ppm / _MILLION) ** 2,
        card.traffic_fj_per_byte,
        rates,
        request.dtypes.activation,
    )
    tables = _native.PowerTables(
        card.limit_w * _MW_PER_W,
        card.idle_w * _MW_PER_W,
        card.window_ms * _PS_PER_MS,
        program.num_stages,
    )
    for one in placed:
        if isinstance(one.cost, OpCost) and one.operator is not None and not one.cost.collective:
            _add_operator(tables, one.cost, one.operator, one.repeat, energy)
    for cost in costs.attentions:
        of_kind = [one for one in placed if one.cost is cost]
        layers = sum(one.repeat for one in of_kind)
        operator = of_kind[0].operator if of_kind else None
        _add_attention(tables, operator, layers, energy)
    program.set_power(tables)


def _add_operator(
    tables: "_native.PowerTables", cost: OpCost, op: Operator, repeat: int, energy: OperationEnergy
) -> None:
    """What memory limits keeps its time at a lower clock, as it has a clock of its own."""
    counts = op.units_of(np.arange(len(cost.ps)))
    flops = counts.astype(np.float64) * op.flops_per_token
    moved = counts * float(op.read_bytes_per_token + op.write_bytes_per_token)
    moved += weight_bytes(op, counts)
    dtype = op.weight_dtype or energy.activation
    rates = energy.rates
    computes = flops / max(rates.peak(dtype), 1) > moved / rates.memory_bandwidth_bytes_per_s
    tables.add_operator(
        FEATURES[cost.feature],
        energy.switching_pj(flops * repeat, dtype),
        energy.traffic_pj(moved * repeat),
        np.where(computes & cost.in_bursts, cost.ps * repeat, 0),
    )


def _add_attention(
    tables: "_native.PowerTables", op: Operator | None, layers: int, energy: OperationEnergy
) -> None:
    if not isinstance(op, Attention):
        tables.add_attention(0, 0, 0)
        return
    each = np.array([op.flops_per_context_token], dtype=np.float64)
    read = np.array([op.kv_bytes_per_context_token], dtype=np.float64)
    tables.add_attention(
        int(energy.switching_pj(each, energy.activation)[0]),
        int(energy.traffic_pj(read)[0]),
        layers,
    )


def _whole(values: Floats) -> Int64:
    return np.rint(values).astype(np.int64)
