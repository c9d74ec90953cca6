"""Estimators with scikit-learn's interface: one table whose columns belong to several parties.

They train like `efvfl run`, with the same messages, bytes and seeds. There are class weights, but no sample weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from efvfl.core.losses import LOSSES, class_weights, weighted
from efvfl.errors import ConfigError
from efvfl.runs.estimator_base import Vertical
from efvfl.util.extras import optional

with optional("sklearn", "an estimator"):
    import polars
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.utils import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import assert_all_finite, check_consistent_length, column_or_1d


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

    def fit(self, X: Any, y: Any) -> VerticalClassifier:
        """Train on rows and their classes, which may be numbers or strings."""
        frame = self._table(X, fitting=True)
        target = _target(y, frame, type(self).__name__)
        check_classification_targets(target)
        self.classes_, numbers = np.unique(target, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(f"expected two or more classes in y, got only one class, {self.classes_[0]}.")
        loss = LOSSES["binary_cross_entropy" if len(self.classes_) == 2 else "cross_entropy"]
        if self.class_weight is not None:
            chosen = compute_class_weight(self.class_weight, classes=self.classes_, y=target)
            loss = weighted(loss, class_weights(chosen.tolist(), torch.from_numpy(numbers), len(self.classes_)))
        self._train(frame, torch.from_numpy(numbers.astype(np.int64)), loss, len(self.classes_), numbers)
        return self

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

    def fit(self, X: Any, y: Any) -> VerticalRegressor:
        """Train on rows and their targets, which are standardised internally."""
        frame = self._table(X, fitting=True)
        target = _target(y, frame, type(self).__name__, np.float64)
        self._mean, self._scale = float(target.mean()), float(target.std()) or 1.0
        standard = torch.from_numpy((target - self._mean) / self._scale).float()
        self._train(frame, standard, LOSSES["mse"], 1, np.zeros(len(target), dtype=np.int64))
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted target of each row, shape (rows,)."""
        return self._output(X)[:, 0] * self._scale + self._mean


def _target(y: Any, frame: polars.DataFrame, name: str, dtype: Any = None) -> NDArray[Any]:
    """Return the labels as an array of shape (rows,), after checking them."""
    if y is None:
        raise ConfigError(f"{name} requires y to be passed, but the target y is None.")
    target: NDArray[Any] = column_or_1d(y, dtype=dtype, warn=True)
    assert_all_finite(target, input_name="y")
    check_consistent_length(frame, target)
    return target
