"""Names for the kinds of id, so that one is never passed for another."""

from typing import NewType

RequestId = NewType("RequestId", str)
ModelName = NewType("ModelName", str)
