"""Compressors, each in one file with its wire codec, and the registry of all of them."""

from efvfl.compress.base import REGISTRY, Compressor, decode, lookup, register
from efvfl.compress.cast import Cast
from efvfl.compress.columns import Columns
from efvfl.compress.identity import Identity
from efvfl.compress.low_rank import LowRank
from efvfl.compress.natural import Natural
from efvfl.compress.product import Product
from efvfl.compress.qsgd import QSGD
from efvfl.compress.randk import RandK
from efvfl.compress.random_topk import RandomTopK
from efvfl.compress.sign import Sign
from efvfl.compress.topk import TopK
from efvfl.compress.topk_qsgd import TopKQSGD
from efvfl.compress.uniform import Uniform

__all__ = [
    "QSGD",
    "REGISTRY",
    "Cast",
    "Columns",
    "Compressor",
    "Identity",
    "LowRank",
    "Natural",
    "Product",
    "RandK",
    "RandomTopK",
    "Sign",
    "TopK",
    "TopKQSGD",
    "Uniform",
    "decode",
    "lookup",
    "register",
]
