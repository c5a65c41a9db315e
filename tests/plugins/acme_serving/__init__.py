"""A package of plug-ins as somebody outside of this repository would write it: it knows the
documented names only.
"""
