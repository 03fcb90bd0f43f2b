"""Make the models that ship with the package, which any CPU trains: recipes, texts, tokenizer, pre-training."""
