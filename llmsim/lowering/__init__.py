"""Turns a deployment into what the native core runs: scheduler options, KV pools and
step programs.
"""

from llmsim.lowering.adjust.calibration import Calibration
from llmsim.lowering.deployment import lower
from llmsim.lowering.types import LoweredDeployment, LoweredGroup, LoweringOptions

__all__ = ["Calibration", "LoweredDeployment", "LoweredGroup", "LoweringOptions", "lower"]
