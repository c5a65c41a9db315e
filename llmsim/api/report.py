"""The summary of a finished run, and its folder of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from llmsim.core import Results

if TYPE_CHECKING:
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.api.cluster import Cluster
    from llmsim.config import Deployment
    from llmsim.config.deployment import Offloading
    from llmsim.config.files.input_files import InputFile
    from llmsim.export.series_files import SeriesFiles
    from llmsim.lowering import LoweredDeployment, LoweredGroup
    from llmsim.results.requests.classes import Objectives


def summary_of(
    results: Results, lowered: "LoweredDeployment", objectives: "Objectives"
) -> dict[str, Any]:
    """What `llmsim run --json` prints."""
    from llmsim.results.summary import summary

    return summary(results, _info(lowered, objectives))


def short_summary_of(
    results: Results, lowered: "LoweredDeployment", objectives: "Objectives"
) -> dict[str, Any]:
    """The summary of a run that kept no sources, without utilisation: both take long for many
    groups.
    """
    from llmsim.results.summary import summary

    full = _info(lowered, objectives)
    left_out = ("operators", "hardware", "tables")
    groups = [
        {name: value for name, value in group.items() if name not in left_out}
        for group in full["groups"]
    ]
    return summary(results, {**full, "groups": groups})


def _info(lowered: "LoweredDeployment", objectives: "Objectives") -> dict[str, Any]:
    from llmsim.results.afd import AfdSides

    network = lowered.network if lowered.layouts is None else lowered.layouts.plans[0].network
    return {
        "groups": [_group_info(group) for group in lowered.groups],
        "cost_plan": lowered.accounting.cost,
        "objectives": objectives,
        "layouts": lowered.layouts,
        "unlike_published": lowered.unlike_published,
        "afd": [
            AfdSides(
                one.groups[: one.attention_members],
                one.groups[one.attention_members :],
                {index: _stages(lowered.groups[index]) for index in one.groups},
            )
            for one in lowered.lockstep_groups
            if one.afd is not None
        ],
        "host_links": () if network is None else network.host_links,
    }


def _group_info(group: "LoweredGroup") -> dict[str, Any]:
    from llmsim.costs import OpCost

    return {
        "ledger": group.ledger.lines,
        "block_bytes": group.ledger.block_bytes,
        "longest_requests": _longest_requests(group),
        "operators": tuple(op for op in group.operators if op.name not in group.hosted),
        "hardware": group.hardware,
        "stages": _stages(group),
        "tables": [cost for cost in group.program_costs if isinstance(cost, OpCost)],
    }


def _stages(group: "LoweredGroup") -> int:
    """Pipeline stages, each of which has devices of its own."""
    return len(group.layout.stage_layers or (1,))


def _longest_requests(group: "LoweredGroup") -> dict[str, Any] | None:
    """How many requests of the longest length the group's KV blocks hold; None: it gets none."""
    if group.scheduler is None:
        return None
    longest, budget = group.scheduler.kv.max_model_len, group.engine.max_num_batched_tokens
    at_once = group.ledger.at_once(longest, budget, group.info.block_size)
    return {"tokens": longest, "at_once": round(at_once, 2)}


def write_run_folder(
    folder: Path,
    options: "RunOptions",
    deployment: "Deployment",
    lowered: "LoweredDeployment",
    results: Results,
    report: dict[str, Any],
    *,
    asked: Mapping[str, Any],
    argv: Sequence[str],
    inputs: Sequence[Path],
    files: "Sequence[InputFile]",
    series: "SeriesFiles | None",
) -> None:
    """Writes requests, steps, series, summary and manifest; `series` is None where the results
    hold it.
    """
    from llmsim.export.run_dir import RunRecord, write_run_dir

    groups = [
        {
            **{
                name: value
                for name, value in asdict(group).items()
                if name not in ("engine", "memory", "offloading", "afd")
            },
            **({} if group.afd is None else {"afd": asdict(group.afd)}),
            "offloading": _offloading(group.offloading),
            "memory": asdict(group.memory),
            "engine": {**placed.engine.shown(), "origin": dict(placed.engine.origin)},
        }
        for group, placed in zip(deployment.groups, lowered.groups, strict=True)
    ]
    record = RunRecord(
        argv=argv,
        asked=asked,
        seed=options.seed,
        inputs=inputs,
        config={
            "groups": groups,
            "link": asdict(deployment.link),
            "topology": None if deployment.topology is None else deployment.topology.as_record(),
            "router": options.router.text,
            "disabled_terms": list(options.disabled_terms),
            "calibration": None if options.calibration is None else asdict(options.calibration),
        },
        table_hashes={f"group {g.info.index}": g.costs.table_hash for g in lowered.groups},
        files=files,
    )
    write_run_dir(folder, results, report, record, series)


def asked_record(
    cluster: "Cluster", dataset: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What a run was given, for `run` of the manifest; `dataset` is None for objects."""
    return {
        "cluster": {"name": cluster.name, "text": cluster.text},
        "dataset": dataset,
        "options": dict(options),
    }


def _offloading(offloading: "Offloading") -> dict[str, Any]:
    placement = (
        None if offloading.placement is None else offloading.placement.model_dump(mode="json")
    )
    return {**asdict(offloading), "placement": placement}
