"""The `station` command: says what this version cannot do.

Owns the name of the multi-user server until the server is here. It must never pretend to serve: it
prints one line and exits 1, so that a script which expects a server notices at once.
"""

import sys


def main() -> int:
    """Say that the multi-user server is not part of this version; always returns exit code 1."""
    print(
        "station: the multi-user server is not part of this version; `vine serve` serves one user.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
