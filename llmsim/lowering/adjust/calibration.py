"""Constants of one machine, fitted to a log of it by `llmsim calibrate`, and how they change what
is lowered.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim.config import Deployment, EngineArgs, LinkSpec
from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite, json_file, shown
from llmsim.core import PS_PER_NS, Int64
from llmsim.costs import CompiledCosts, OpCost
from llmsim.costs.source import AttentionCost, MixedAttention, SplitAttention

KIND = "llmsim calibration"
SCHEMA_VERSION = 1
MILLION = 1_000_000
LIMITS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "time_factor": (0.1, 10.0),
        "host_gap_ns": (0.0, 1e9),
        "collective_factor": (0.01, 100.0),
        "link_bandwidth_gb_per_s": (1e-3, 1e6),
        "link_latency_ns": (0.0, 1e9),
    }
)
"""Constant -> least and largest value that a calibration file may give."""


class Calibration(Struct, frozen=True):
    """Constants of one machine; None or one million: as the tables, the engine profile and the
    cluster file say.

    `time_factor_ppm` multiplies every operator's time but those of collectives, in millionths
    (1,020,000: the machine is 2 % slower than its tables). `collective_factor_ppm` multiplies that
    of collectives that have tables: their links are those of the machine that was measured. The
    link is that of dimension 0, inside a group.
    """

    hardware: str
    """Only groups on this hardware are changed."""
    source: str
    time_factor_ppm: int = MILLION
    host_gap_ps: int | None = None
    collective_factor_ppm: int = MILLION
    link_bandwidth_bytes_per_s: int | None = None
    link_latency_ps: int | None = None

    @property
    def label(self) -> str:
        """The constants in words."""
        parts = (
            [f"operator times x{self.time_factor_ppm / MILLION:.6g}"]
            if self.time_factor_ppm != MILLION
            else []
        )
        if self.host_gap_ps is not None:
            parts.append(f"host gap {self.host_gap_ps / 1e9:.6g} ms")
        if self.collective_factor_ppm != MILLION:
            parts.append(f"measured collectives x{self.collective_factor_ppm / MILLION:.6g}")
        if self.link_bandwidth_bytes_per_s is not None:
            parts.append(f"link {self.link_bandwidth_bytes_per_s / 1e9:.6g} GB/s")
        if self.link_latency_ps is not None:
            parts.append(f"link latency {self.link_latency_ps / 1e6:.6g} us")
        return ", ".join(parts) or "nothing changed"

    def constants(self) -> dict[str, float | None]:
        """The constants under their names and units of the file."""
        return {
            "time_factor": self.time_factor_ppm / MILLION,
            "host_gap_ns": None if self.host_gap_ps is None else self.host_gap_ps / PS_PER_NS,
            "collective_factor": self.collective_factor_ppm / MILLION,
            "link_bandwidth_gb_per_s": _divided(self.link_bandwidth_bytes_per_s, 1e9),
            "link_latency_ns": _divided(self.link_latency_ps, PS_PER_NS),
        }


def _divided(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def load_calibration(path: Path) -> Calibration:
    """Reads a file of `llmsim calibrate`; InputError says what is wrong with it."""
    data = json_file(path, "a calibration file, as `llmsim calibrate` writes one")
    if (
        not isinstance(data, dict)
        or data.get("kind") != KIND
        or data.get("schema_version") != SCHEMA_VERSION
    ):
        raise InputError(
            f'{path}: not a calibration file of this version (kind "{KIND}", schema '
            f"{SCHEMA_VERSION})",
            file=str(path),
        )
    constants = data.get("constants")
    hardware = data.get("hardware")
    if not isinstance(constants, dict) or not isinstance(hardware, str):
        raise InputError(
            f'{path}: "hardware" and "constants" must be there; `llmsim calibrate` writes both',
            file=str(path),
        )
    values = {name: _constant(path, name, constants) for name in LIMITS}
    unknown = sorted(constants.keys() - LIMITS.keys())
    if unknown:
        raise InputError(
            f"{path}: constants.{unknown[0]} means nothing here; known are {', '.join(LIMITS)}",
            file=str(path),
        )
    return calibration_of(hardware, str(path), values)


def calibration_of(hardware: str, source: str, values: Mapping[str, float | None]) -> Calibration:
    """A calibration from constants under their names and units of the file; missing or None: not
    calibrated.
    """

    def scaled(name: str, unit: float) -> int | None:
        value = values.get(name)
        return None if value is None else round(value * unit)

    return Calibration(
        hardware=hardware,
        source=source,
        time_factor_ppm=scaled("time_factor", MILLION) or MILLION,
        host_gap_ps=scaled("host_gap_ns", PS_PER_NS),
        collective_factor_ppm=scaled("collective_factor", MILLION) or MILLION,
        link_bandwidth_bytes_per_s=scaled("link_bandwidth_gb_per_s", 1e9),
        link_latency_ps=scaled("link_latency_ns", PS_PER_NS),
    )


def _constant(path: Path, name: str, constants: Mapping[str, Any]) -> float | None:
    value = constants.get(name)
    if value is None:
        return None
    least, largest = LIMITS[name]
    number = finite(value)
    if number is None or not least <= number <= largest:
        wanted = f"it must be a number from {least:g} to {largest:g}"
        raise InputError(f"{path}: constants.{name} is {shown(value)}; {wanted}", file=str(path))
    return number


def link_with(deployment: Deployment, calibration: Calibration | None) -> LinkSpec:
    """The deployment's links; InputError where the calibration is of hardware that no group has."""
    link = deployment.link
    if calibration is None:
        return link
    known = sorted({group.hardware for group in deployment.groups})
    if calibration.hardware not in known:
        raise InputError(
            f'{calibration.source}: it calibrates "{calibration.hardware}", but the cluster has '
            f"{', '.join(known)}"
        )
    bandwidth, latency = calibration.link_bandwidth_bytes_per_s, calibration.link_latency_ps
    if deployment.topology is not None and (bandwidth, latency) != (None, None):
        raise InputError(
            f"{calibration.source}: it calibrates links, but the cluster's are those of the "
            f"topology {deployment.topology.spec.name}; correct them there, and remove the link "
            "constants here"
        )
    return LinkSpec(
        bandwidth_bytes_per_s=(
            bandwidth or link.bandwidth_bytes_per_s[0],
            *link.bandwidth_bytes_per_s[1:],
        ),
        latency_ps=(link.latency_ps[0] if latency is None else latency, *link.latency_ps[1:]),
    )


def engine_with(engine: EngineArgs, calibration: Calibration) -> EngineArgs:
    """The engine's arguments with the calibrated host gap."""
    if calibration.host_gap_ps is None:
        return engine
    origin = MappingProxyType({**engine.origin, "host_gap_ps": f"calibration {calibration.source}"})
    return replace(engine, host_gap_ps=calibration.host_gap_ps, host_ranks_ps=0, origin=origin)


def costs_with(costs: CompiledCosts, calibration: Calibration) -> CompiledCosts:
    """Every operator's table times its factor, that of collectives or that of all others, labelled
    in its source.

    A calibrated machine may be faster than its data sheet: the floor then warns and is no longer an
    invariant.
    """
    ppm, collectives_ppm = calibration.time_factor_ppm, calibration.collective_factor_ppm
    ops = tuple(_scaled_op(op, collectives_ppm if op.collective else ppm) for op in costs.ops)
    if ppm == MILLION:
        return replace(costs, ops=ops)
    label = _label(ppm)
    return replace(
        costs,
        ops=ops,
        attention=_scaled_attention(costs.attention, ppm, label),
        more_attention=tuple(_scaled_attention(one, ppm, label) for one in costs.more_attention),
        floor=replace(costs.floor, enforce=False),
        sources=tuple(source + label for source in costs.sources),
    )


def _label(ppm: int) -> str:
    return f", x{ppm / MILLION:.6g} (calibration)"


def _scaled_op(op: OpCost, ppm: int) -> OpCost:
    if ppm == MILLION:
        return op
    sampled = None if op.sampled is None else replace(op.sampled, ps=_scaled(op.sampled.ps, ppm))
    return replace(op, ps=_scaled(op.ps, ppm), sampled=sampled, source=op.source + _label(ppm))


def _scaled_attention(attention: AttentionCost, ppm: int, label: str) -> AttentionCost:
    scaled: AttentionCost = attention
    match attention:
        case MixedAttention(grid=mixed):
            scaled = replace(attention, grid=replace(mixed, ps=_scaled(mixed.ps, ppm)))
        case SplitAttention(grid=split):
            loss = _scaled_int(split.mixed_decode_ps_per_kv_token_q20, ppm)
            grid = replace(
                split.with_prompts(lambda ps: _scaled(ps, ppm)),
                decode_ps=_scaled(split.decode_ps, ppm),
                mixed_decode_ps_per_kv_token_q20=loss,
            )
            scaled = replace(attention, grid=grid)
    return replace(
        scaled,
        skew_ps_per_token_q20=_scaled_int(attention.skew_ps_per_token_q20, ppm),
        source=attention.source + label,
    )


def _scaled(ps: Int64, ppm: int) -> Int64:
    """ps * ppm / 10^6, halves up; whole millions apart from the rest, so that the product cannot
    overflow.
    """
    whole, rest = np.divmod(ps, MILLION)
    return np.asarray(whole * ppm + (rest * ppm + MILLION // 2) // MILLION, dtype=np.int64)


def _scaled_int(value: int, ppm: int) -> int:
    return (value * ppm + MILLION // 2) // MILLION


def calibration_notes(calibration: Calibration | None) -> tuple[str, ...]:
    """What a run with a calibration says about it."""
    if calibration is None:
        return ()
    return (f"calibrated for {calibration.hardware} by {calibration.source}: {calibration.label}",)
