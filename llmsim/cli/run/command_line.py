"""The command line of `run`: every option under its name, as a class that typer reads and the
checks are given.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from dataclasses import fields as fields_of
from typing import Annotated, Any, get_type_hints

import typer

from llmsim.cli.options import PANELS, costs, engine, inputs, outputs, peer
from llmsim.cli.options.panel import option
from llmsim.cli.usage import Command
from llmsim.config.engine.options import OnCommandLine, command_line_options


@dataclass(frozen=True)
class CommandLine:
    """What was given, unchecked; the types' annotations are typer's."""

    cluster_config: inputs.Cluster
    dataset: inputs.Dataset
    engine_options: Mapping[str, Any]
    """The given options of the table `EngineOptions`, by field."""
    num_reqs: inputs.NumReqs = 0
    seed: inputs.Seed = 0
    max_concurrency: inputs.MaxConcurrency = 0
    think_time: inputs.ThinkTime = None
    request_timeout: inputs.RequestTimeout = None
    horizon: inputs.Horizon = None
    fp: peer.Fp = None
    queue_order: engine.QueueOrder = None
    preemption_victim: engine.PreemptionVictim = None
    cache_eviction: engine.CacheEviction = None
    admission: engine.Admission = None
    allow_plugins: inputs.AllowPlugins = True
    request_routing_policy: inputs.Routing = "LOAD"
    decode_routing_policy: inputs.DecodeRouting = "LOAD"
    kv_transfer: costs.KvTransfer = None
    kv_transfer_mode: costs.KvTransferMode = None
    expert_routing_policy: costs.ExpertRouting = "BALANCED"
    profile_dir: costs.ProfileDir = None
    cost_source: costs.CostSource = "auto"
    cost_table: costs.CostTable = None
    require: costs.Require = None
    collective_costs: costs.Collectives = "auto"
    network_backend: costs.Network = "analytical"
    exact: costs.Exact = False
    output: outputs.Output = None
    run_dir: outputs.RunDir = None
    timeline: outputs.Timeline = None
    as_json: outputs.Json = False
    input_files: outputs.InputFiles = None
    goodput: outputs.Goodput = None
    log_interval: outputs.LogInterval = 1.0
    log_level: outputs.LogLevel = "WARNING"
    prioritize_prefill: peer.PrioritizePrefill = False
    enable_prefix_sharing: engine.PrefixSharing = False
    prefix_storage: engine.PrefixStorage = None
    kv_tier_write: engine.KvTierWrite = None
    kv_tier_eviction: engine.KvTierEviction = None
    kv_tier_recall: engine.KvTierRecall = None
    check_every_step: outputs.CheckEveryStep = False
    kv_chunk_size: engine.KvChunkSize = None
    enable_local_offloading: peer.LocalOffloading = False
    enable_attn_offloading: peer.AttnOffloading = False
    enable_sub_batch_interleaving: peer.SubBatch = False
    enable_attn_prediction: peer.AttnPrediction = False
    gen: peer.Gen = False
    skip_prefill: peer.SkipPrefill = False
    enable_block_copy: peer.BlockCopy = None
    run_id: peer.RunId = None
    inputs_root: peer.InputsRoot = None
    cleanup_inputs: peer.CleanupInputs = None
    disable_term: costs.DisableTerm = None
    calibration: costs.Calibration = None
    arrivals: inputs.Arrivals = None


class PanelledCommand(Command):
    """A command whose help lists its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(
                    getattr(parameter, "rich_help_panel", None) or "Other", []
                ).append(record)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)


def taking_command_line(act: Callable[[typer.Context, CommandLine], int]) -> Callable[..., int]:
    """`act` as typer takes it: a function with a parameter for every field of CommandLine and every
    engine option.
    """
    rows = command_line_options()

    def command(context: typer.Context, **given: Any) -> int:
        engine_options = {name: value for name in rows if (value := given.pop(name)) is not None}
        return act(context, CommandLine(engine_options=engine_options, **given))

    types = get_type_hints(CommandLine, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for field in fields_of(CommandLine):
        if field.name == "engine_options":
            parameters += [
                _engine_parameter(name, mark, text) for name, (mark, text) in rows.items()
            ]
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        parameters.append(
            inspect.Parameter(field.name, keyword, default=default, annotation=types[field.name])
        )
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {
        "return": int
    }
    return command


def _engine_parameter(name: str, mark: OnCommandLine, text: str) -> inspect.Parameter:
    kind: Any = mark.kind | None
    annotation = Annotated[kind, option(engine.PANEL, *mark.declarations(name), text=text)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
