"""A party on several machines."""
