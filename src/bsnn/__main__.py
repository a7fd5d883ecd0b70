"""`python -m bsnn` is `bsnn`."""

from bsnn.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
