"""What a deployment costs: prices per device-hour, cost per token, and two deployments side by
side.

Spend ratio and cost efficiency follow Frontier (section 6.2): with Price(g) the hourly price of
deployment g and T(g) its token throughput, against a baseline g0, SR = Price(g0) / Price(g), CE =
(T(g) / Price(g)) / (T(g0) / Price(g0)).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmsim.core import PS_PER_S

S_PER_H = 3600
J_PER_KWH = 3.6e6


class Price(Struct, frozen=True):
    """One group's devices: USD per device and hour, and who says so."""

    hardware: str
    devices: int
    usd_per_device_hour: float | None
    """None: neither the cluster file nor the list of prices gives one."""
    source: str
    basis: str = ""
    """"cluster file", "data sheet"; of listed prices "list" (its seller's), "quoted" (what somebody
    says of it) or "assumption".
    """


class CostPlan(Struct, frozen=True):
    """What the hours of a deployment cost; `nodes_usd_per_hour` is beside the devices."""

    groups: tuple[Price, ...]
    nodes_usd_per_hour: float
    grid_g_per_kwh: float | None
    electricity_price_per_kwh: float | None

    @property
    def usd_per_hour(self) -> float | None:
        """Of the whole cluster; None where a group has no price."""
        total = self.nodes_usd_per_hour
        for price in self.groups:
            if price.usd_per_device_hour is None:
                return None
            total += price.devices * price.usd_per_device_hour
        return total


def cost_figures(
    plan: CostPlan,
    *,
    duration_ps: int | None,
    output_tokens: int,
    total_tokens: int,
    energy_j: float | None,
) -> dict[str, Any] | None:
    """The `cost` block of the summary; None where nothing has a price.

    `duration_ps` is the makespan: hours are paid whether the devices work or not. USD throughout.
    """
    unpriced = list(
        dict.fromkeys(price.hardware for price in plan.groups if price.usd_per_device_hour is None)
    )
    if (
        all(price.usd_per_device_hour is None for price in plan.groups)
        and not plan.nodes_usd_per_hour
    ):
        return None
    per_hour = plan.usd_per_hour
    electricity = _electricity(plan, energy_j)
    total = None
    if per_hour is not None and duration_ps is not None:
        total = per_hour * duration_ps / PS_PER_S / S_PER_H + (electricity or 0.0)
    return {
        "currency": "USD",
        "price_per_hour": per_hour,
        "electricity": electricity,
        "total": total,
        "per_million_output_tokens": _per_million(total, output_tokens),
        "per_million_tokens": _per_million(total, total_tokens),
        "groups": _groups(plan.groups),
        "without_price": unpriced,
    }


def carbon_g(plan: CostPlan, energy_j: float | None) -> float | None:
    """Grams of CO2 equivalent of an energy; None where the grid's factor or the energy is not
    known.
    """
    if plan.grid_g_per_kwh is None or energy_j is None:
        return None
    return energy_j / J_PER_KWH * plan.grid_g_per_kwh


def _electricity(plan: CostPlan, energy_j: float | None) -> float | None:
    if plan.electricity_price_per_kwh is None or energy_j is None:
        return None
    return energy_j / J_PER_KWH * plan.electricity_price_per_kwh


def _per_million(total: float | None, tokens: int) -> float | None:
    return total / tokens * 1e6 if total is not None and tokens else None


def _groups(prices: Sequence[Price]) -> list[dict[str, Any]]:
    """Hardware by hardware: one row for equal devices at an equal price."""
    devices: dict[Price, int] = {}
    for price in prices:
        one = replace(price, devices=1)
        devices[one] = devices.get(one, 0) + price.devices
    return [
        {
            "hardware": one.hardware,
            "devices": count,
            "price_per_device_hour": one.usd_per_device_hour,
            "basis": one.basis or None,
            "source": one.source,
        }
        for one, count in devices.items()
    ]


class Comparison(Struct, frozen=True):
    """A candidate against a baseline; both ratios above 1 favour the candidate."""

    spend_ratio: float
    cost_efficiency: float


def compare(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Comparison | None:
    """The two scores from two summaries; None where one of them has no price, or no throughput."""
    rates = []
    for summary in (baseline, candidate):
        cost, throughput = summary.get("cost"), summary.get("total_token_throughput")
        if not cost or not cost.get("price_per_hour") or not throughput:
            return None
        rates.append((float(cost["price_per_hour"]), float(throughput)))
    (price0, tokens0), (price, tokens) = rates
    return Comparison(
        spend_ratio=price0 / price, cost_efficiency=(tokens / price) / (tokens0 / price0)
    )
