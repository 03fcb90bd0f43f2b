"""`python -m scripts.make_tiny --base tiny --out FOLDER`: make a tiny model again."""

from scripts.make_tiny.pretrain import main

main()
