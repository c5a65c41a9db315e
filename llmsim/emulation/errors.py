"""How an emulation can end early."""

from llmsim.config.errors import LlmsimError


class NoProgressError(LlmsimError):
    """The server ended, or nothing moves any more; finished requests are written."""

    exit_code = 3


class DegradedError(LlmsimError):
    """An actor died, and time went by the wall clock from then on; what was served is written."""

    exit_code = 4
