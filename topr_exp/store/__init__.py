"""Content-addressed tables: what one run sampled, graded or scored, every other run reads.

`table.py` has the store, `survey.py` tells its tables from other folders, `shards.py` has the files of a table,
`filling.py` shares the work of making them between processes (apart by `runtime/locks.py`), `ragged.py` reads list
columns without copies, and `python -m topr_exp.store` is the command line.
"""

from topr_exp.store.ragged import Ragged
from topr_exp.store.table import Store, Table

__all__ = ["Ragged", "Store", "Table"]
