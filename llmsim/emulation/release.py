"""The engine profile of an emulation: that of the release that is installed."""

from pathlib import Path

from msgspec.structs import replace

from llmsim.api.checked.run_options import RunOptions
from llmsim.config.cluster_file.cluster import load_cluster
from llmsim.config.engine.profile import profile_of_release
from llmsim.config.errors import InputError
from llmsim.emulation.engines.engine import Engine
from llmsim.lowering import LoweredDeployment

PROFILE = "engine_profile"


def with_release(options: RunOptions, engine: Engine, python: Path) -> RunOptions:
    """The options with the profile of the engine that `python` has, where neither they nor the
    whole cluster file name one.

    Options stay as they are where no engine is installed. Raises InputError for the cluster file.
    """
    if PROFILE in options.engine or load_cluster(options.cluster).engine.engine_profile is not None:
        return options
    try:
        version = engine.version(python)
    except InputError:  # what is wrong with the options is said first
        return options
    profile = profile_of_release(engine.name, version)
    return replace(options, engine={**options.engine, PROFILE: profile})


def engine_profiles(lowered: LoweredDeployment) -> list[str]:
    """Those of the instances, each once."""
    return sorted({one.engine.engine_profile for one in lowered.groups})


def other_release(lowered: LoweredDeployment, engine: Engine, version: str) -> str | None:
    """Says which instances have the rules of another release than the engine's; None: none has."""
    own = profile_of_release(engine.name, version)
    others = [one for one in engine_profiles(lowered) if one != own]
    if not others:
        return None
    return (
        f"the engine profile is {', '.join(others)}, but {engine.title} {version} has the rules of "
        f"{own}: steps may differ"
    )
