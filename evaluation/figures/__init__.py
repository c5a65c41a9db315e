"""Figures 5 to 10 of the LLMServingSim 2.0 paper (ISPASS 2026), regenerated with llmsim; see
evaluation/README.md.
"""
