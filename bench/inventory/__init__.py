"""What a model is made of and what it takes, told without loading its weights."""
