"""`python -m headway`: the command where its script is not on the path."""

from headway.cli import main

main()
