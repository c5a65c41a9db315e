"""Finds the sources that know a deployment's device, and says why one that was asked
for does not.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.errors import InputError, nearest
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.source import CostRequest, CostSource
from llmsim.costs.sources.bundle.files import BundleFiles, find_bundle
from llmsim.costs.sources.roofline import RooflineSource
from llmsim.costs.sources.silicon.database import Database, find_database, silicon_is_missing
from llmsim.model.hardware import YOUR_OWN, hardware_names, hardware_spellings, load_hardware

if TYPE_CHECKING:
    from llmsim.costs.sources.external.table import ExternalTable
    from llmsim.model import Hardware


class Similar(Struct, frozen=True):
    """A measured device that an unmeasured one resembles."""

    hardware: Hardware
    database: Database


class Available(Struct, frozen=True):
    """What was found for a request, before anything is read."""

    bundle: BundleFiles | None
    database: Database | None
    roofline: bool
    notes: tuple[str, ...]
    tables: tuple[ExternalTable, ...] = ()
    similar: Similar | None = None


def look(request: CostRequest) -> Available:
    """Finds the sources that the request allows and that know its device; InputError when there is
    none.
    """
    notes: list[str] = []
    bundle, reason = (None, "")
    if request.source in ("auto", "bundle"):
        try:
            bundle, reason = find_bundle(request)
        except OSError as error:
            raise InputError(
                f'the profile directory "{error.filename}" cannot be read ({error.strerror})'
            ) from None
        if bundle is None and request.source == "bundle":
            raise InputError(f"no profile bundle: {reason}")
        if bundle is None and request.profile_dirs:
            notes.append(f"no profile bundle is used: {reason}")
    database = (
        find_database(request)
        if request.source != "roofline" or request.collectives == "measured"
        else None
    )
    if request.predict_attention and bundle is None:
        raise InputError(
            (
                "--enable-attn-prediction fits the attention rows of a profile bundle; give one "
                "with --profile-dir"
            )
            + (f" ({reason})" if request.profile_dirs else "")
        )
    if request.source == "silicon":
        _need_silicon(request, database)
    tables = _external_tables(request)
    if request.source == "external" and not tables:
        raise InputError("the cost source external needs a table; give --cost-table FILE")
    roofline = peak_rates_of(request) is not None
    if bundle is None and request.hardware is None and not tables and not request.plugin:
        raise InputError(
            f'the hardware "{request.hardware_name}" is not known'
            f"{nearest(request.hardware_name, hardware_spellings())}; use one of "
            f"{', '.join(hardware_names())}, "
            f"the path of a data sheet ({YOUR_OWN}), or a profile bundle "
            "(--profile-dir)" + (f": {reason}" if reason and request.profile_dirs else "")
        )
    similar = _similar(request) if request.source == "auto" else None
    if (
        request.source == "auto"
        and bundle is None
        and not request.plugin
        and silicon_is_missing(request)
    ):
        notes.append(
            "the silicon database (Python package aiconfigurator-core) is not installed for "
            f"Python {platform.python_version()} on {platform.system()} {platform.machine()}: "
            f"times that nothing else measures rest on the data sheet of {request.hardware_name}"
        )
    return Available(bundle, database, roofline, tuple(notes), tables, similar)


def _external_tables(request: CostRequest) -> tuple[ExternalTable, ...]:
    if not request.cost_tables:
        return ()
    from llmsim.costs.sources.external.table import read_external

    return tuple(read_external(path) for path in request.cost_tables)


def _similar(request: CostRequest) -> Similar | None:
    """The neighbour of a card that was not measured itself. InputError where a user's data sheet
    names no such card.
    """
    sheet = request.hardware
    if sheet is None or sheet.silicon_system is not None or sheet.similar_to is None:
        return None
    neighbour = None if sheet.similar_to.endswith(".json") else load_hardware(sheet.similar_to)
    if neighbour is None or neighbour.silicon_system is None:
        raise InputError(
            f'the data sheet of {sheet.name}: similar_to is "{sheet.similar_to}", which is no '
            f"device that the silicon database has; it may be {', '.join(_measured_devices())}"
        )
    found = find_database(replace(request, hardware=neighbour))
    return Similar(neighbour, found) if found is not None and found.has_operators else None


def _measured_devices() -> list[str]:
    """Names of data sheets whose device the silicon database has."""
    sheets = {name: load_hardware(name) for name in hardware_names()}
    return [name for name, sheet in sheets.items() if sheet is not None and sheet.silicon_system]


def _need_silicon(request: CostRequest, database: Database | None) -> None:
    if request.hardware is None or request.hardware.silicon_system is None:
        raise InputError(
            f'the silicon database has no tables for the hardware "{request.hardware_name}"; '
            "use a profile bundle (--profile-dir) or the cost source roofline"
        )
    if database is None or not database.has_operators:
        raise InputError(
            f'the silicon database of "{request.hardware.silicon_system}" is not there; install '
            "the Python package "
            "aiconfigurator-core (it has no build for every platform), or use the cost source "
            "roofline"
        )


def sources_of(request: CostRequest, available: Available) -> list[CostSource]:
    """The sources of a request, the most trusted one first."""
    sources: list[CostSource] = []
    if available.bundle is not None:
        sources.append(_bundle_source(request, available.bundle))
    if request.plugin:
        from llmsim.costs.sources.plugin import load_plugin

        sources.append(load_plugin(request))
    if available.tables and request.source in ("auto", "external"):
        from llmsim.costs.sources.external.source import ExternalSource

        sources.append(ExternalSource(request, available.tables))
    if (
        available.database is not None
        and available.database.has_operators
        and request.source in ("auto", "silicon")
    ):
        from llmsim.costs.sources.silicon.source import (
            SiliconSource,
        )  # pyarrow is imported only where a table is read

        sources.append(SiliconSource(request, available.database))
    if available.similar is not None:
        from llmsim.costs.sources.scaled_device import SimilarSource

        sources.append(
            SimilarSource(request, available.similar.hardware, available.similar.database)
        )
    if available.roofline and request.source not in ("bundle", "external"):
        sources.append(RooflineSource(request))
    return sources


def _bundle_source(request: CostRequest, bundle: BundleFiles) -> CostSource:
    if bundle.older:
        from llmsim.costs.sources.bundle.legacy import OlderBundleSource

        return OlderBundleSource(request, bundle)
    from llmsim.costs.sources.bundle.source import BundleSource

    return BundleSource(request, bundle)
