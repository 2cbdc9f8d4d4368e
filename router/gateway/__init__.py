"""HTTP dialects of other APIs, each a client of this router's own RPCs."""
