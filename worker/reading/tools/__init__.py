"""Formats in which models write calls of tools: a file each."""
