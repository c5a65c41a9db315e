"""Mutation testing: changes the program in small ways and sees whether a test fails (`make
mutate`).
"""
