"""The router: admits requests, chooses a worker, relays its tokens."""
