"""What everything else uses: randomness, files, states on disk, compiled kernels."""
