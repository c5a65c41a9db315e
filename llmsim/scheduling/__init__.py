"""Schedulers: what their options mean, and the proof that the native ones do what the real ones
did.
"""
