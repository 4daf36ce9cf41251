"""`python -m headway.cli`: the same as `python -m headway`."""

from headway.cli import main

main()
