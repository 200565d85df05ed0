"""`python -m harn`: the command line."""

from harn.cli import main

main()
