"""What an answer's text says: reasoning, content, calls of tools."""
