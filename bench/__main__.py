"""`python -m bench [SUBJECT ...] [--quick]`."""

import sys

from bench.harness import main

sys.exit(main(sys.argv[1:]))
