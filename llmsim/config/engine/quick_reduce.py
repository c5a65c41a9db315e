"""Checks how an engine on AMD's cards is started with the quick all-reduce.

Source: vLLM 0.33 and SGLang 0.5.23, distributed/device_communicators/quick_all_reduce.py.
"""

from collections.abc import Mapping
from typing import Any

from llmsim.config.engine.defaults import Positions
from llmsim.config.engine.profile import EngineProfile
from llmsim.config.engine.schedulers import SGLANG
from llmsim.config.errors import InputError

PREFIX = "quick_reduce_"
QUICK_REDUCE_LIMITS = (
    "quick_reduce_cast_bf16_to_fp16",
    "quick_reduce_min_size_bytes_mb",
    "quick_reduce_max_size_bytes_mb",
    "quick_reduce_quantization_min_size_kb",
)
"""Variables that say more of a quick all-reduce that is on."""
DEFAULT_MOST_MB = 2048
ONLY_VLLM = ("quick_reduce_min_size_bytes_mb", "quick_reduce_quantization_min_size_kb")
WITH_INT3 = (0, 28)
"""The first release of vLLM whose kernels have INT3, of those that were read."""


def check_quick_reduce(
    values: Mapping[str, Any], positions: Positions, profile: EngineProfile
) -> None:
    """InputError for what the engine would refuse, or has no environment variable for."""
    if values["scheduler"] == SGLANG:
        for name in ONLY_VLLM:
            if values[name] is not None:
                raise InputError(f"{positions[name](name)} is vLLM's, not SGLang's; remove it")
    if values["quick_reduce_quantization"] == "INT3":
        _check_int3(values, positions, profile)
    least, most = (values[f"{PREFIX}{one}_size_bytes_mb"] for one in ("min", "max"))
    if least is not None and least > (most or DEFAULT_MOST_MB):
        name = f"{PREFIX}min_size_bytes_mb"
        raise InputError(
            f"{positions[name](name)} is {least}, more than the largest vector of the quick "
            f"all-reduce, {most or DEFAULT_MOST_MB} MB ({PREFIX}max_size_bytes_mb); lower it"
        )


def _check_int3(values: Mapping[str, Any], positions: Positions, profile: EngineProfile) -> None:
    release = tuple(int(part) for part in profile.vllm_release.split(".") if part.isdecimal())
    if values["scheduler"] != SGLANG and release >= WITH_INT3:
        return
    name = f"{PREFIX}quantization"
    raise InputError(
        f"{positions[name](name)} is INT3, which {profile.name} does not have; give INT4, or "
        f"choose an engine_profile from vllm-{'.'.join(map(str, WITH_INT3))} on"
    )
