"""`python -m topr_exp.tabular`: the two figures of the papers that need no language model (`paper/tabular.py`)."""

import sys

from topr_exp.paper.tabular import main

if __name__ == "__main__":
    sys.exit(main())
