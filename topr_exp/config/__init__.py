"""The settings of a run, a file for each group of `conf/`; `settings.py` holds them all, `load.py` checks them."""
