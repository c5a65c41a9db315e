"""Lowers links, topologies and collectives to prices and routes of the network engine."""
