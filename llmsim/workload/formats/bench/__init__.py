"""Trace formats of benchmarks and other simulators."""
