"""All methods on six problems, with the same rows, network, batches, rounds and grid of rates: what each one sends."""
