"""The engine: the thread that owns MLX, and the pure deciders it follows."""
