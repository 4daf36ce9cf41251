"""`python -m headway.cli` runs the `headway` command, like `python -m headway`."""

from headway.cli import main

main()
