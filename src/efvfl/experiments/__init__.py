"""Many runs: the experiments of the paper, their tables and figures."""
