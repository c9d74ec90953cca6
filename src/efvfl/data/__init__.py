"""Data sets whose columns belong to different parties."""

from efvfl.data import catalogue
from efvfl.data.base import Dataset, cut
from efvfl.data.digits import digits
from efvfl.data.npz import npz, npz_files

__all__ = ["Dataset", "catalogue", "cut", "digits", "npz", "npz_files"]
