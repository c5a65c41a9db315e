"""llmsim simulates LLM serving clusters: schedulers, KV caches, operators and networks, without a
GPU.
"""

from llmsim import native_build
from llmsim.compat import moved_modules

__version__ = "0.1.0"

native_build.install_finder()
moved_modules.install_finder()
