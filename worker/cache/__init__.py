"""The state that each layer keeps of each row: one kind a file, one contract for all."""
