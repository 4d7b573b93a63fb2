"""Data files of the engine: the tokenizer's rank file and, in an installed package, the example forests."""
