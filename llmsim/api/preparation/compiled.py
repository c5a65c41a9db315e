"""Compiled clusters, and the groups that they are made of, kept for further runs of a process."""

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from llmsim.api.checked.run_options import RunOptions
from llmsim.api.cluster import Cluster
from llmsim.api.preparation import prepare
from llmsim.config.files import input_files
from llmsim.config.files.input_files import InputFiles
from llmsim.config.files.kept import KeptWithFiles

if TYPE_CHECKING:
    from llmsim.api.preparation.prepare import Compiled
    from llmsim.config import Deployment
    from llmsim.lowering import LoweredDeployment, LoweringOptions
    from llmsim.lowering.deployment import Kinds
    from llmsim.lowering.network.cluster_network import ClusterNetwork

KEPT = 16
"""Compiled clusters that are kept for the next run."""
KEPT_SURROUNDINGS = 8
MOST_GROUPS = 512
"""Groups of equal surroundings that are kept; each has 1 to 4 MB of tables."""
WORKLOAD_OPTIONS = (
    "dataset",
    "num_reqs",
    "arrivals",
    "max_concurrency",
    "think_time",
    "timeout_s",
    "horizon_ps",
    "asked",
    "verbose",
    "quiet",
    "check_every_step",
    "policies",
    "require",
    "objectives",
    "router",
    "session_affinity",
    "seed",
    "log_interval_ps",
)
"""Options of a run that do not change what a cluster is compiled to."""


class CompiledClusters:
    """Clusters that were compiled in this process, while the files that they were made of last.

    With `share_groups` clusters that differ in the number of their instances share the tables of
    their groups, for a process that runs one simulation after the other.
    """

    def __init__(self, *, share_groups: bool = False) -> None:
        self._clusters: KeptWithFiles[Compiled] = KeptWithFiles(KEPT)
        self._groups = KnownGroups() if share_groups else None

    def get(self, cluster: Cluster, options: RunOptions) -> "Compiled":
        """The compiled cluster; made now where it, an option or a file is new."""

        def compiled() -> "Compiled":
            return prepare.compile_cluster(cluster.parsed(), options, self._groups)

        # A plug-in may answer otherwise the next time.
        return self._clusters.get(_key(cluster, options), compiled, keep=not options.cost_plugin)


class KnownGroups:
    """Lowered groups by what their tables depend on, for deployments with equal surroundings."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Kinds, InputFiles]] = OrderedDict()
        self._lock = threading.Lock()

    def lowered(
        self,
        deployment: "Deployment",
        options: "LoweringOptions",
        beside: "ClusterNetwork | None" = None,
    ) -> "LoweredDeployment":
        """The lowered deployment; groups that an earlier one had are not compiled again."""
        from llmsim.lowering import lower

        key = _surroundings(deployment, options)
        if key is None:
            return lower(deployment, options, beside=beside)
        with self._lock:
            kinds, files = self._kinds(key)
            try:
                with input_files.recorded() as read:
                    return lower(deployment, options, kinds, beside)
            finally:
                files.add(read)

    def _kinds(self, key: Hashable) -> "tuple[Kinds, InputFiles]":
        """What is known beside these surroundings, while its files last."""
        kinds, files = self._kept.pop(key, ({}, InputFiles()))
        if len(kinds) > MOST_GROUPS or not files.unchanged():
            kinds, files = {}, InputFiles()
        files.note_again()
        self._kept[key] = kinds, files
        while len(self._kept) > KEPT_SURROUNDINGS:
            self._kept.popitem(last=False)
        return kinds, files


def _surroundings(deployment: "Deployment", options: "LoweringOptions") -> Hashable | None:
    """What the tables of a group depend on beside the group itself; None where they may depend on
    other groups, as they do in a topology and where groups share a node's memory.
    """
    from llmsim.config.deployment import Offloading
    from llmsim.lowering.kv.offloading import offloads

    alone = all(group.offloading == Offloading() for group in deployment.groups)
    moves_kv = options.tiers or offloads(deployment)
    if deployment.topology is not None or moves_kv or not alone:
        return None
    devices = sorted({(group.model_name, group.hardware) for group in deployment.groups})
    models = dict.fromkeys(group.model_name for group in deployment.groups)
    folder = os.path.dirname(deployment.cluster_path)
    place = os.getcwd(), folder, deployment.link, deployment.pool, deployment.disaggregation
    return repr((place, devices, list(models), options))


def _key(cluster: Cluster, options: RunOptions) -> Hashable:
    settings = {
        name: value for name, value in asdict(options).items() if name not in WORKLOAD_OPTIONS
    }
    return repr((cluster.name, cluster.text, os.getcwd(), settings))
