"""`llmsim emulate`: a real engine's server in virtual time, whose devices are simulated."""
