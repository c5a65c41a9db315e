"""Options in seconds, to integer ps; InputError names the option, its value, and what it takes."""

from llmsim.config.errors import InputError

MAX_LOG_INTERVAL_S = 1e6
MAX_HORIZON_S = 4e6


def horizon_ps(seconds: float | None) -> int | None:
    """`--horizon` in ps."""
    if seconds is None:
        return None
    if not 1e-6 <= seconds <= MAX_HORIZON_S:
        raise InputError(
            f"--horizon is {seconds:g}; it must be between 0.000001 and {MAX_HORIZON_S:g} seconds"
        )
    return round(seconds * 1e12)


def interval_ps(seconds: float) -> int:
    """`--log-interval` in ps."""
    if not 1e-3 <= seconds <= MAX_LOG_INTERVAL_S:
        raise InputError(
            f"--log-interval is {seconds:g}; it must be between 0.001 and {MAX_LOG_INTERVAL_S:g} "
            "seconds"
        )
    return round(seconds * 1e12)
