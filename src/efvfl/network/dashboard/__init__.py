"""A live page about runs, from their files alone: it works beside a training process, after it and without it."""
