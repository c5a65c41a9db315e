"""Turns a cluster, a workload and options into a compiled deployment that later runs reuse."""
