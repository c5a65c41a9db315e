"""The cluster file and the engine's options: parsed, checked, every default and unit resolved."""

from llmsim.config.cluster_file.cluster import Cluster, load_cluster, parse_cluster
from llmsim.config.deployment import (
    Deployment,
    Disaggregation,
    Group,
    LinkSpec,
    MemorySpec,
    Node,
    StorageSpec,
)
from llmsim.config.engine.args import EngineArgs, with_model_limits
from llmsim.config.engine.options import EngineOverrides
from llmsim.config.engine.profile import load_profile, profile_names
from llmsim.config.resolve import resolve
from llmsim.config.schema import cluster_schema

__all__ = [
    "Cluster",
    "Deployment",
    "Disaggregation",
    "EngineArgs",
    "EngineOverrides",
    "Group",
    "LinkSpec",
    "MemorySpec",
    "Node",
    "StorageSpec",
    "cluster_schema",
    "load_cluster",
    "load_profile",
    "parse_cluster",
    "profile_names",
    "resolve",
    "with_model_limits",
]
