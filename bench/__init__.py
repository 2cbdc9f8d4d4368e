"""Benchmarks: each prints what it ran, its figures and their ratios."""
