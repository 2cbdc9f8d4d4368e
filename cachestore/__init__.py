"""The cache store: prefix snapshots in RAM and on SSD, shared by all workers."""
