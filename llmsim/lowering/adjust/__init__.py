"""Applies calibration constants, ablation terms and power caps to compiled costs."""
