"""A party's table turned into numbers: reading, ids, splits, encoding, models and a look at what is there."""
