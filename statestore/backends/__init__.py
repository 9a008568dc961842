"""State backends: siblings that never import each other."""
