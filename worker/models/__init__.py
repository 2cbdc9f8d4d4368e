"""Where models come from: mlx-lm's model files, GGUF files, and the matrix library under them."""
