"""Measured times of collectives on the links that a cluster file states.

Tables of collectives were measured on the links of the data sheet. Where a cluster file states
others, every time of a table is multiplied by what the library's model takes on the stated links,
beside what it takes on those of the data sheet: the model's errors in the time itself cancel. A
slower link never makes a collective faster, and the links of the data sheet change nothing.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.deployment import ASSUMED_LINK_LATENCY_NS
from llmsim.core import PS_PER_NS, Provenance
from llmsim.costs.nccl.constants import machine_of
from llmsim.costs.nccl.plans import Place, choose, choose_vllm
from llmsim.costs.nccl.protocols import Floats, Machine
from llmsim.model.layout import Among

if TYPE_CHECKING:
    from llmsim.costs.source import Curve
    from llmsim.model import Hardware

CUSTOM_GRAPH, CUSTOM_EAGER = "custom all-reduce", "custom all-reduce, eager"
"""Tables of the engine's own all-reduce; all others are named after NCCL's collectives."""


class StatedLink(Struct, frozen=True):
    """The links among some ranks, where they are not those of the data sheet."""

    among: Among
    bytes_per_s: int
    latency_ps: int


class LinksOfFile(Struct, frozen=True):
    """What measured times of collectives heed of the cluster file's links."""

    others: tuple[StatedLink, ...] = ()
    """Links that are not those of the data sheet."""
    heeded: bool = True
    """False: measured times stay as they are, whatever the file states."""

    def among(self, ranks: Among, hardware: "Hardware | None") -> "TableLinks":
        """The links of tables of collectives among some ranks."""
        stated = next((one for one in self.others if one.among == ranks), None)
        if stated is None or hardware is None:
            return AsMeasured()
        return OnStatedLinks(machine_of(hardware), stated)


class TableLinks(Protocol):
    """The links on which a table of measured times is read."""

    def times_us(self, table: str, ranks: int, sizes_bytes: Floats, times_us: Floats) -> Floats:
        """The times of a table (CUSTOM_GRAPH, CUSTOM_EAGER or NCCL's collective) on the links."""

    def marked(self, curve: "Curve") -> "Curve":
        """The curve, which says where its times are from."""


class AsMeasured:
    """The links of the machine that was measured."""

    def times_us(self, table: str, ranks: int, sizes_bytes: Floats, times_us: Floats) -> Floats:
        """The times themselves."""
        return times_us

    def marked(self, curve: "Curve") -> "Curve":
        """The curve itself."""
        return curve


class OnStatedLinks:
    """Links that the cluster file states, beside those that were measured."""

    def __init__(self, measured: Machine, stated: StatedLink) -> None:
        self._measured = measured
        self._label = in_words(stated.bytes_per_s, stated.latency_ps)
        self._machine = on_link(measured, stated.bytes_per_s, stated.latency_ps)

    def times_us(self, table: str, ranks: int, sizes_bytes: Floats, times_us: Floats) -> Floats:
        """Each time, times the model's ratio at its size."""
        here, there = (
            _modelled_us(machine, table, ranks, sizes_bytes)
            for machine in (self._machine, self._measured)
        )
        return times_us * (here / there)

    def marked(self, curve: "Curve") -> "Curve":
        """Marked as scaled, with both links in the source."""
        sheet = f"{self._measured.link_gb_per_s:g} GB/s and {ASSUMED_LINK_LATENCY_NS} ns"
        source = f"{curve.source}, scaled from links of {sheet} to {self._label}"
        marks = np.full(len(curve.ps), Provenance.SCALED, np.uint8)
        return replace(curve, provenance=marks, source=source)


def on_link(machine: Machine, bytes_per_s: int, latency_ps: int) -> Machine:
    """A machine on other links, which its name then says; itself on those of the data sheet."""
    wait_us = (latency_ps / PS_PER_NS - ASSUMED_LINK_LATENCY_NS) / 1e3
    if (bytes_per_s / 1e9, wait_us) == (machine.link_gb_per_s, 0.0):
        return machine
    name = f"{machine.name} on links of {in_words(bytes_per_s, latency_ps)}"
    return replace(machine.scaled(bytes_per_s / 1e9, name).waiting(wait_us), name=name)


def in_words(bytes_per_s: int, latency_ps: int) -> str:
    """A link as sources of costs name it."""
    return f"{bytes_per_s / 1e9:.6g} GB/s and {latency_ps / PS_PER_NS:.6g} ns"


def _modelled_us(machine: Machine, table: str, ranks: int, sizes_bytes: Floats) -> Floats:
    if table in (CUSTOM_GRAPH, CUSTOM_EAGER):
        return choose_vllm(machine, sizes_bytes, ranks, eager=table == CUSTOM_EAGER).us
    return choose(machine, table, sizes_bytes, Place(ranks, 1, ranks)).us
