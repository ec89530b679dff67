"""What the recipes that need no download prepare for themselves: a tiny model and its task, or a model from a wheel."""
