"""How an emulation can end early."""

from llmsim.config.errors import LlmsimError


class NoProgressError(LlmsimError):
    """The server ended, or nothing moves any more; finished requests are written."""

    exit_code = 3
