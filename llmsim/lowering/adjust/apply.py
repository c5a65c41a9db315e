"""Applies a machine's calibration, and takes disabled fidelity terms away, before anything is
lowered.
"""

from msgspec.structs import replace

from llmsim.config import Deployment
from llmsim.costs import CompiledCosts
from llmsim.lowering.adjust.ablation_terms import (
    check_terms,
    costs_without,
    engine_without,
    term_notes,
)
from llmsim.lowering.adjust.calibration import (
    Calibration,
    calibration_notes,
    costs_with,
    engine_with,
    link_with,
)


def adjusted(
    deployment: Deployment, calibration: Calibration | None, disabled: tuple[str, ...]
) -> Deployment:
    """The deployment with its machine's calibrated constants, then without the engine's disabled
    terms.

    Raises InputError for an unknown term, or a calibration of hardware that the deployment does not
    have.
    """
    check_terms(disabled)
    groups = []
    for group in deployment.groups:
        engine = group.engine
        if calibration is not None and calibration.hardware == group.hardware:
            engine = engine_with(engine, calibration)
        groups.append(replace(group, engine=engine_without(engine, disabled)))
    return replace(deployment, groups=tuple(groups), link=link_with(deployment, calibration))


def adjusted_costs(
    costs: CompiledCosts, hardware: str, calibration: Calibration | None, disabled: tuple[str, ...]
) -> CompiledCosts:
    """The same for the cost tables of a group on `hardware`."""
    costs = costs_without(costs, disabled)
    return (
        costs_with(costs, calibration)
        if calibration is not None and calibration.hardware == hardware
        else costs
    )


def adjustment_notes(calibration: Calibration | None, disabled: tuple[str, ...]) -> tuple[str, ...]:
    """One sentence for each change."""
    return (*calibration_notes(calibration), *term_notes(disabled))
