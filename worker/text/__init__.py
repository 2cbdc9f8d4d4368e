"""Between text and token ids: templates, tokenizing, detokenizing. Neither mlx nor the network."""
