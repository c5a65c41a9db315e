"""Accepts what other simulators and earlier versions of llmsim had: options, commands, names of
modules.
"""
