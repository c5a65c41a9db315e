"""Measures operators and serving engines on a device of one's own, and imports what others
measured.

`python -m llmsim.profiler measure | serve-log | import`; PyTorch is needed by the first two only
(extra `llmsim[profiler]`).
"""
