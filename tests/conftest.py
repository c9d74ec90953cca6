"""What holds for every test."""

import signal

import torch

# Blocks in tests are small: a second thread only costs time.
torch.set_num_threads(1)

# A shell starts its background jobs with SIGINT ignored, and children inherit that. Tests send Ctrl-C to processes that
# they start, which must take it as they would in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
