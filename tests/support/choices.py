"""The compressors and agreements that memories are tried with."""

from efvfl import QSGD, Agreement, Cast, Ramp, RandK, SharedLabels, Sign, TopK, TopKQSGD

COMPRESSORS = [TopK(0.1), RandK(0.2), QSGD(4), Sign(), Cast("bf16"), TopKQSGD(0.3, 4), TopK(Ramp(0.1, 1.0, 5))]


AGREEMENTS = [
    Agreement(labels="private"),
    Agreement(labels="private", reports="all"),
    Agreement(labels="shared"),
    Agreement(SharedLabels(fusion="compress"), reports="all"),
    Agreement(SharedLabels(downlink="aggregate", fusion="replicate", local_steps=2)),
    Agreement(SharedLabels(fusion="compress", local_steps=2)),
]
# Not all with all: each compressor under three agreements of both label modes, each agreement with three or more.
PAIRS = [(compressor, AGREEMENTS[(k + d) % 6]) for k, compressor in enumerate(COMPRESSORS) for d in (0, 2, 4)]
