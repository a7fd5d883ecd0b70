"""`python -m bso` is `bso`."""

from bso.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
