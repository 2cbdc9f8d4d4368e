"""``python -m bramley.client``: the ``bramley`` command."""

from bramley.client.cli import main

if __name__ == "__main__":
    main()
