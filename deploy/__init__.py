"""The supervisor: parent of every process of one node."""
