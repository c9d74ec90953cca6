"""Write the rows of the example: one .npz file for each of the two banks, and one for the label holder.

The rows are scikit-learn's breast cancer data, as a stand-in for customers: 569 of them, 30 columns, two classes. The
first 15 columns go to bank_a, the others to bank_b. Columns are standardised over all rows, test rows included: simple,
and good enough for an example. In earnest, each party takes means and deviations from its training rows.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer


def make_data(folder: Path) -> list[Path]:
    """Write bank_a.npz and bank_b.npz with `x` and `ids`, labels.npz with `y` and `ids`; return their paths."""
    columns, labels = load_breast_cancer(return_X_y=True)
    columns = ((columns - columns.mean(axis=0)) / columns.std(axis=0)).astype(np.float32)
    ids = np.array([f"customer-{number:03d}" for number in range(len(labels))])
    arrays = {"bank_a": {"x": columns[:, :15]}, "bank_b": {"x": columns[:, 15:]}, "labels": {"y": labels}}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, contents in arrays.items():
        paths.append(folder / f"{name}.npz")
        np.savez(paths[-1], ids=ids, **contents)
    return paths


if __name__ == "__main__":
    for made in make_data(Path(sys.argv[1])):
        print(made)
