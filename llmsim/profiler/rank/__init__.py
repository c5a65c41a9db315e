"""The operators of one rank, ready to be measured."""
