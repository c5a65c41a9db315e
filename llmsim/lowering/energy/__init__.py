"""Lowers power descriptions to energy accounts of groups and nodes."""
