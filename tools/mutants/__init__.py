"""Hand-made faults, and the ordinary tests that must notice each of them.

A `Mutant` is one small change to one file of `src/`. `make mutants` makes it in a copy of the tree,
runs the tests named beside it, and says whether they failed: *caught*, or *survived*. The table
has a module for each room.

    mutant.py    the record, and how a change is made
    runner.py    copies of the tree, and what the tests say about each change
    storage.py, workers.py, pools.py, ratelimit.py, concurrency.py, triggers.py    the table
"""

from tools.mutants import concurrency, pools, ratelimit, storage, triggers, workers
from tools.mutants.mutant import Mutant, TableError

TABLE: tuple[Mutant, ...] = (
    *storage.MUTANTS,
    *workers.MUTANTS,
    *pools.MUTANTS,
    *ratelimit.MUTANTS,
    *concurrency.MUTANTS,
    *triggers.MUTANTS,
)

__all__ = ["TABLE", "Mutant", "TableError"]
