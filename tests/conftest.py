"""What holds for all tests, however and wherever they are run."""

import signal

from hypothesis import settings

# Properties hold on any machine: how long an example takes there is no part of them.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# A shell's background jobs ignore interrupts, and so would the processes that tests start to interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
