"""Reads logs of real servers and outputs of simulators into one form."""
