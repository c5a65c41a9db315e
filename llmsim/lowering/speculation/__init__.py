"""Lowers speculative decoding: the drafter's program, and what each request accepts."""
