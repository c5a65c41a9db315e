"""What ends the core's loop, as an error of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from llmsim import _native
from llmsim.config.errors import (
    InfeasibleError,
    InputError,
    InvariantError,
)
from llmsim.core import (
    Workload,
)
from llmsim.lowering import LoweredDeployment
from llmsim.simulation.options import SimulationOptions


@contextmanager
def errors_named(
    simulation: "_native.Simulation",
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
) -> Iterator[None]:
    """What ends the core's loop as an error of ours: who is to blame, and what was done by then."""
    try:
        yield
    except (OverflowError, _native.engine.OutOfRange) as error:
        raise InfeasibleError(
            f"{error} at {simulation.num_finished} of {len(workload)} finished requests; are steps "
            "and links that slow, or are times of the profile in the wrong unit?"
        ) from None
    except _native.OutOfStates as error:
        raise InfeasibleError(
            f"{error}, beside those that HiCache still has to copy, and SGLang would end with 'Can "
            "not alloc mamba cache'; raise max_mamba_cache_size or mamba_full_memory_ratio"
        ) from None
    except _native.OutOfKvMemory as error:
        raise InfeasibleError(
            f"{error}, beside pages that HiCache still has to copy, and SGLang would end with 'out "
            "of memory'; raise hicache_ratio, or set hicache_write_policy to write_through"
        ) from None
    except _native.EngineFails as error:
        raise InfeasibleError(
            f"{error}; choose the engine_profile of another release, or a load without clients "
            "that give up"
        ) from None
    except _native.Stalled as error:
        if options.policies.scheduler is not None:
            raise InputError(
                f"scheduler {options.policies.scheduler.name} schedules nothing although requests "
                f"wait: {error} ({options.policies.scheduler.position('build(')})"
            ) from None
        raise InvariantError(
            f"invariant 7 (nobody waits for nothing) is violated: {error}"
        ) from None
    except _native.Violated as error:
        raise InvariantError(str(error)) from None
    except _native.BadPolicy as error:
        raise InputError(options.policies.named(str(error))) from None
    except _native.BadRoute as error:
        name, position = options.router.name, options.router.position()
        if deployment.kv_transfers is not None and options.decode_router.python is not None:
            name = f"{name} or {options.decode_router.name}"
            position = ", ".join(filter(None, (position, options.decode_router.position())))
        raise InputError(f"router {name} {error} ({position})") from None
