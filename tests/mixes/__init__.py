"""Random clusters with random options, all features mixed freely, and what has to hold for each of
them.
"""
