"""Data sets cut by columns."""

from efvfl.data.base import Dataset, cut
from efvfl.data.digits import digits
from efvfl.data.npz import npz

__all__ = ["Dataset", "cut", "digits", "npz"]
