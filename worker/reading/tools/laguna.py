"""Calls as Poolside's Laguna writes them: as GLM 4.7 does. Pure."""

from bramley.worker.reading.tools import glm47

FORMAT = glm47.FORMAT.named("laguna")
