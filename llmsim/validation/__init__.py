"""Compares a recorded run with a simulated one, and fits the documented constants of a machine to a
recording.
"""

from llmsim.validation.compare.compare import Comparison, compare
from llmsim.validation.logs.reader import read_recording
from llmsim.validation.logs.recording import Finding, Recording

__all__ = ["Comparison", "Finding", "Recording", "compare", "read_recording"]
