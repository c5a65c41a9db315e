"""Compares the native scheduler with vLLM's: recorded schedules, random cases, the installed
engine.
"""
