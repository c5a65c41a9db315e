"""Properties hold on any machine: how long an example takes there is no part of them."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
