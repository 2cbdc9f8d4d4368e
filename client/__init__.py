"""The Python client and the ``bramley`` command line."""
