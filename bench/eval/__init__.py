"""Evaluation: how far two models' distributions are apart, and tasks with known answers."""
