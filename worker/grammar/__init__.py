"""What an answer may be: constraints, compiled, as masks over the vocabulary."""
