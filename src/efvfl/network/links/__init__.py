"""How frames travel between organisations, and how none is lost."""
