"""What the commands of a federation do; each opens what a participant needs, and closes it again."""
