"""Turns a deployment into what the native core runs: scheduler options, KV pools and step programs."""

from llmsim.lowering.deployment import LoweredDeployment, LoweredGroup, LoweringOptions, lower

__all__ = ["LoweredDeployment", "LoweredGroup", "LoweringOptions", "lower"]
