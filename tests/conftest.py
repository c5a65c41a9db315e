"""What holds for all tests, however and wherever they are run."""

import gc
import os
import signal

from hypothesis import settings

# Properties hold on any machine: how long an example takes there is no part of them. `make test`
# tries the same examples every time, so that it fails for a change and never by chance; `make fuzz`
# draws others.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A shell's background jobs ignore interrupts, and so would the processes that tests start to
# interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is collected stays until the end: looking for garbage in it takes half of the collection.
gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is looked for again; what was collected counts as old."""
    gc.freeze()
    gc.unfreeze()
    gc.enable()
