"""Embeddings: pooled hidden states of the served model."""
