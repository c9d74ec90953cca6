"""Estimators with scikit-learn's interface: one table whose columns belong to several parties.

They train like `efvfl run`, with the same messages, bytes and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.core.losses import LOSSES, Loss, class_weights, weighted
from efvfl.errors import ConfigError
from efvfl.runs.estimator_base import Vertical
from efvfl.runs.estimator_warm_start import ANEW
from efvfl.util.extras import optional

with optional("sklearn", "an estimator"):
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.utils import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets

    from efvfl.runs.estimator_inputs import counting_rows, target_of


@dataclass(eq=False, repr=False)
class VerticalClassifier(ClassifierMixin, Vertical):  # type: ignore[misc]
    """A classifier whose columns belong to several parties; two classes share one output.

    >>> x = np.random.default_rng(0).normal(size=(80, 4))
    >>> y = np.where(x[:, 0] + x[:, 3] > 0, "yes", "no")
    >>> model = VerticalClassifier({"bank": [0, 1], "shop": [2, 3]}, epochs=30).fit(x, y)
    >>> model.predict(x).shape, model.score(x, y) > 0.8, model.bytes_up_ > 0
    ((80,), True, True)
    """

    class_weight: str | Mapping[Any, float] | None = field(default=None, kw_only=True)  # by class, or "balanced"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> VerticalClassifier:
        """Train on rows and their classes, which may be numbers or strings; each row counts with its weight."""
        frame = self._table(X, fitting=True)
        target = target_of(y, frame, type(self).__name__)
        check_classification_targets(target)
        frame, target, weights = counting_rows(frame, target, sample_weight)
        self.classes_ = self._classes(np.unique(target))
        labels = torch.from_numpy(np.searchsorted(self.classes_, target).astype(np.int64))
        with self._computing():
            self._train(frame, labels, self._loss(target, labels, weights), len(self.classes_), weights)
        return self

    def _classes(self, found: NDArray[Any]) -> NDArray[Any]:
        """Return the classes to learn: those of the labels, or those of the last fit if training goes on."""
        if self._continues:
            known: NDArray[Any] = self.classes_
            if new := [name for name in found.tolist() if name not in known.tolist()]:
                raise ConfigError(
                    f"warm_start: expected classes of the last fit, {known.tolist()}, got also {new}: leave these rows "
                    f"out, {ANEW}."
                )
            return known
        if len(found) < 2:
            raise ConfigError(f"expected two or more classes in y, got only one class, {found[0]}.")
        return found

    def _loss(self, target: NDArray[Any], labels: Tensor, weights: NDArray[np.float64] | None) -> Loss:
        loss = LOSSES["binary_cross_entropy" if len(self.classes_) == 2 else "cross_entropy"]
        if self.class_weight is None:
            return loss
        wanted: str | list[float] = "balanced"
        if self.class_weight != wanted:
            wanted = compute_class_weight(self.class_weight, classes=self.classes_, y=target).tolist()
        row_weights = None if weights is None else torch.from_numpy(weights)
        return weighted(loss, class_weights(wanted, labels, len(self.classes_), row_weights))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return logits: shape (rows,) for two classes, above 0 for the second one; else (rows, classes)."""
        output = self._output(X)
        return output[:, 0] if len(self.classes_) == 2 else output

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class, shape (rows, classes), in the order of `classes_`."""
        logits = torch.from_numpy(self._output(X))
        shares = torch.cat([-logits, logits], dim=1).sigmoid() if len(self.classes_) == 2 else logits.softmax(dim=1)
        return shares.numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of each row, shape (rows,)."""
        logits = self.decision_function(X)
        chosen = logits > 0 if logits.ndim == 1 else logits.argmax(axis=1)
        found: NDArray[Any] = self.classes_[chosen.astype(np.int64)]
        return found


@dataclass(eq=False, repr=False)
class VerticalRegressor(RegressorMixin, Vertical):  # type: ignore[misc]
    """A least-squares regressor whose columns belong to several parties.

    >>> x = np.random.default_rng(0).normal(size=(80, 4))
    >>> model = VerticalRegressor({"bank": [0, 1], "shop": [2, 3]}, epochs=30).fit(x, x[:, 0] - x[:, 3])
    >>> model.predict(x).shape, model.score(x, x[:, 0] - x[:, 3]) > 0.5
    ((80,), True)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> VerticalRegressor:
        """Train on rows and their targets, which are standardised internally; each row counts with its weight."""
        frame = self._table(X, fitting=True)
        target = target_of(y, frame, type(self).__name__, np.float64)
        frame, target, weights = counting_rows(frame, target, sample_weight)
        if not self._continues:  # the network's outputs are on the scale of the first fit
            self._mean = float(np.average(target, weights=weights))
            variance = float(np.average((target - self._mean) ** 2, weights=weights))
            self._scale = variance**0.5 or 1.0
        standard = torch.from_numpy((target - self._mean) / self._scale).float()
        with self._computing():
            self._train(frame, standard, LOSSES["mse"], 1, weights)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted target of each row, shape (rows,)."""
        return self._output(X)[:, 0] * self._scale + self._mean
