"""The serving benchmark: whole servers, asked the same requests in turn, and what they did."""
