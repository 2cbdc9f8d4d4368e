"""Sampling: parameters, and one vectorised sampler over rows."""
