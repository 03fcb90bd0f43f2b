"""`python -m topr_exp.models.pretrain` makes a tiny model again: `topr_exp/tiny/pretrain.py` under its older name."""

import runpy

if __name__ == "__main__":
    runpy.run_module("topr_exp.tiny.pretrain", run_name="__main__")
