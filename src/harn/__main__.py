"""`python -m harn`: the command line."""

from harn.cli import run_alone

run_alone()
