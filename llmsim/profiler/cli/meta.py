"""meta.yaml of a measured bundle: provenance, and the fingerprint that keeps two measurements from
one folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.costs.sources.bundle.files import variant_of
from llmsim.model import Dtypes, ModelConfig
from llmsim.profiler.bundle.tables import written
from llmsim.profiler.device.device import describe
from llmsim.profiler.rank.rank import Rank

if TYPE_CHECKING:
    from llmsim.profiler.cli.measure import MeasureOptions

PROFILER_VERSION = "1"


class Meta:
    """meta.yaml: provenance, and the fingerprint that keeps two different measurements from one
    folder.
    """

    def __init__(
        self,
        path: Path,
        torch: Any,
        device: Any,
        options: MeasureOptions,
        model: ModelConfig,
        dtypes: Dtypes,
    ) -> None:
        self._path = path
        self._options = options
        self._model = model
        self._variant = variant_of(dtypes)
        dtype = (
            self._variant
            if dtypes.weight == dtypes.activation
            else f"{self._variant}, {dtypes.activation}"
        )
        self.info = describe(torch, device)
        shape = replace(model, source="", notes=())
        what = (
            repr(shape),
            dtype,
            options.style,
            options.attention,
            options.mode,
            self.info.name,
            options.clock,
        )
        self.fingerprint = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]

    def check(self) -> dict[str, Any]:
        """What an earlier sitting wrote, {} for none; InputError when the folder holds another
        measurement.
        """
        if not self._path.is_file() or self._options.force:
            return {}
        try:
            found = yaml.safe_load(self._path.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, OSError) as error:
            raise InputError(
                f"{self._path}: cannot be read ({error}); remove it or say --force",
                file=str(self._path),
            ) from None
        if not isinstance(found, dict) or found.get("fingerprint") != self.fingerprint:
            raise InputError(
                f"{self._path}: the folder holds a measurement of another model, device or "
                "kernel choice; give another "
                "--out-root or --hardware, or say --force to add rows to it all the same",
                file=str(self._path),
            )
        return found

    def write(self, ranks: Sequence[Rank], state: str, found: dict[str, object]) -> None:
        """Writes what is known now, `found` by the sitting; the rows themselves are in
        the tables.
        """
        limits = self._options.limits
        content: dict[str, object] = {
            "profiler_version": PROFILER_VERSION,
            "fingerprint": self.fingerprint,
            "state": state,
            "gpu": self.info.name,
            "hardware": self._options.hardware,
            "model": self._model.name,
            "variant": self._variant,
            "tp_degrees": list(self._options.degrees),
            **self.info.facts,
            "kernels": {
                "style": self._options.style,
                **self._attention_kernels(ranks),
                "experts": ranks[0].expert_kernel,
                **ranks[0].kernels,
                "not_used": ranks[0].reasons,
            },
            "timing": {
                "mode": self._options.mode or "graph on CUDA, else eager",
                "clock": self._options.clock,
                "statistic": "median of warm samples; spread is (p90 - p10) / median",
            },
            "engine_effective": {
                "max_num_batched_tokens": limits.max_tokens,
                "max_num_seqs": limits.max_seqs,
            },
            "attention_grid": {
                "max_kv": limits.max_kv,
                "chunk_factor": limits.chunk_factor,
                "kv_factor": limits.kv_factor,
            },
            "skew_profile": {"enabled": self._options.skew, "times": "sums of three executions"},
            "skew_fit": {"enabled": False},
        }
        content |= found
        temporary = self._path.with_suffix(".tmp")
        with written(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
            temporary.replace(self._path)

    def _attention_kernels(self, ranks: Sequence[Rank]) -> dict[str, dict[str, str]]:
        """Table of attention -> degree -> kernel."""
        tables = dict.fromkeys(name for rank in ranks for name in rank.attention_kernels)
        return {
            name: {f"tp{rank.tp}": rank.attention_kernels[name] for rank in ranks}
            for name in tables
        }
