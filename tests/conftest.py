import torch

# Blocks in tests are small: a second thread only costs time.
torch.set_num_threads(1)
