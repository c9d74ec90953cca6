"""What a run was made with: versions of everything that computes, and the number of threads."""

from __future__ import annotations

import platform


def versions() -> dict[str, str]:
    """Return the versions by name, as records and settings have them.

    >>> sorted(versions())
    ['efvfl', 'machine', 'numpy', 'platform', 'python', 'threads', 'torch']
    """
    import numpy
    import torch

    import efvfl

    return {
        "efvfl": efvfl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.system(),
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
    }
