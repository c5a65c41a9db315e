"""Everything that a run may be given, before any check."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from llmsim.api.options import costs, engine, inputs, outputs, peer


class Given(Struct, frozen=True):
    """Options of a run, unchecked; each type carries its option as the command line shows it."""

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
    session_affinity: inputs.SessionAffinity = True
    kv_transfer: costs.KvTransfer = None
    kv_transfer_mode: costs.KvTransferMode = None
    expert_routing_policy: costs.ExpertRouting = "UNIFORM"
    profile_dir: costs.ProfileDir = None
    cost_source: costs.CostSource = "auto"
    cost_table: costs.CostTable = None
    require: costs.Require = None
    collective_costs: costs.Collectives = "auto"
    network_backend: costs.Network = "analytical"
    collective_contention: costs.CollectiveContention = "on"
    exact: costs.Exact = False
    output: outputs.Output = None
    run_dir: outputs.RunDir = None
    timeline: outputs.Timeline = None
    graphs: outputs.Graphs = None
    as_json: outputs.Json = False
    verbose: outputs.Verbose = False
    quiet: outputs.Quiet = False
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

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The values of the fields that need not be given."""
        values = cls.__struct_defaults__
        return dict(zip(cls.__struct_fields__[-len(values) :], values, strict=True))
