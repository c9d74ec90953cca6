"""The base class of the estimators: parameters, assignment of columns to parties, training, and prediction."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from efvfl.config.column_types import ColumnType
from efvfl.config.run_file import RunConfig, read
from efvfl.config.table_defaults import TABLES
from efvfl.core import ranges
from efvfl.core.fusion import Fusion
from efvfl.core.losses import Loss
from efvfl.errors import ConfigError, DataError, DataWarning, InputError, nearest, whole_number
from efvfl.models.mlp import seeded_model
from efvfl.runs import estimator_subsets, estimator_warm_start
from efvfl.runs.build import head_model, make_optimizer, watching
from efvfl.training import measure
from efvfl.training.federate import federate
from efvfl.training.federation import Federation
from efvfl.training.options import Setup, Training
from efvfl.training.record import Record
from efvfl.util.extras import optional
from efvfl.util.rng import derive
from efvfl.util.threads import torch_threads

with optional("sklearn", "an estimator"):
    import polars
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

    from efvfl.data.tables.drift import changes, warnings_about
    from efvfl.data.tables.encode import Encoder, Layout
    from efvfl.data.tables.table import as_frame, mark_missing
    from efvfl.models.tables import linear_model, table_model
    from efvfl.runs.estimator_inputs import Columns, given, index, markers, parties_of, split_rows, table_settings

ModelMaker = Callable[[Layout, int], nn.Module]

FEWEST_VALIDATION = 30  # fewer rows say too little about when to stop


@dataclass(eq=False, repr=False)
class Vertical(estimator_subsets.PartlyPresent, BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators. The fields are scikit-learn's parameters, stored unchanged; `fit` checks them."""

    columns: Columns | None = None  # names or indices of each party's columns; None: two parties with half of them each
    _: KW_ONLY
    method: str = "efvfl"  # or svfl, cvfl
    compressor: Mapping[str, Any] | None = None  # what is None here and below is as in a run file without that key
    down: Mapping[str, Any] | None = None  # compressor of the server's answers with private labels; {}: exact
    labels: str = "private"  # or shared
    label_holder: str = ""  # the party that runs the server, if any
    model: str | ModelMaker = "table"  # or linear, or a function (layout, width) -> torch module
    width: int | None = None  # of the representation: numbers per party and row, before compression
    hidden: Sequence[int] | None = None  # layers of a party's table model
    epochs: int | None = None  # at most, with early stopping
    batch_size: int | None = None  # 0: all rows
    optimizer: Mapping[str, Any] | None = None
    validation_fraction: float | None = (
        None  # share of the rows to hold out; None: a tenth, if they decide when to stop
    )
    early_stopping: bool | str = "auto"  # stop by the validation loss and go back to its best; auto: with rows enough
    types: Mapping[str | int, ColumnType] | None = None  # of columns, by name or index, as in a run file
    missing: Sequence[str] | None = None  # texts that mean a missing value; None: the usual ones
    threads: int = 1  # of torch; small models are fastest with one, 0: as torch decides
    subsets: bool = False  # a party lacks rows in which all its values are missing; any subset of parties predicts
    warm_start: bool = False  # go on from the parameters of the last fit
    random_state: Any = 0
    verbose: bool = False

    def __sklearn_tags__(self) -> Any:
        """Return tags that allow missing values: the encoders fill them."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the federation, which contains every party's training rows."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "federation_"}

    @property
    def bytes_up_(self) -> int:
        """The bytes that the parties sent during training."""
        return int(self._last_record().bytes_up)

    @property
    def bytes_down_(self) -> int:
        """The bytes that the server sent during training."""
        return int(self._last_record().bytes_down)

    def _last_record(self) -> Record:
        check_is_fitted(self)
        record: Record = self.records_[-1]
        return record

    @property
    def _continues(self) -> bool:
        """Whether `fit` goes on from the last one."""
        return bool(self.warm_start) and hasattr(self, "_models")

    def _computing(self) -> AbstractContextManager[None]:
        """Compute with the threads that were asked for."""
        ranges.check("threads", self.threads)
        return torch_threads(int(self.threads))

    def _table(self, X: Any, fitting: bool) -> polars.DataFrame:
        """Return the columns as a table with the names used in the first `fit`."""
        first = fitting and not self._continues
        if hasattr(X, "columns"):
            with _input():
                frame = as_frame(X)
            validate_data(self, frame, reset=first, skip_check_array=True)
            if fitting and (frame.height < 2 or not frame.width):
                raise ConfigError(
                    "expected at least 2 samples and 1 feature, got "
                    f"{frame.height} sample(s) and {frame.width} feature(s)."
                )
        else:
            least = 2 if fitting else 1
            array = validate_data(
                self, X, reset=first, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=least
            )
            frame = polars.DataFrame(array, schema=[f"x{i}" for i in range(array.shape[1])])
        if first:
            self._names = frame.columns
        texts = markers(self.missing) if first else next(iter(self.encoders_.values())).missing
        return mark_missing(frame.rename(dict(zip(frame.columns, self._names, strict=True))), texts or ())

    def _train(
        self,
        frame: polars.DataFrame,
        labels: Tensor,
        loss: Loss,
        outputs: int,
        weights: NDArray[np.float64] | None,
    ) -> None:
        """Split off the validation rows, encode each party's columns, and train."""
        seed = self._seed()
        run = self._run(seed, loss.name)
        stops, share = self._stopping(run, len(labels))
        rows, validation = split_rows(len(labels), seed, share)
        self._fit_encoders(frame, rows)
        features = self._features(frame)
        if (present := self._present(frame)) is not None:
            features = estimator_subsets.blanked(features, present)
        local = {name: self._local_model(run, name, encoder.layout) for name, encoder in self.encoders_.items()}
        head = head_model(run, [run.model.width] * len(local), outputs, loss.name)
        if self._continues:
            last = [*self._models, self._fusion.head]
            estimator_warm_start.take_over([*local, "the server"], [*local.values(), head], last)
        self.federation_ = federate(
            {name: x[rows] for name, x in features.items()},
            labels[rows],
            local,
            head,
            method=run.method.build(),
            agreement=replace(run.agreement.build(), subsets="sampled" if self.subsets else "off"),
            validation=(
                {name: x[validation] for name, x in features.items()},
                labels[validation],
                None if weights is None else weights[validation],
            ),
            training=Training(
                loss=loss,
                optimizer=make_optimizer(run.optimizer),
                batch_size=run.batch_size,
                seed=run.seed,
                weights=None if weights is None else weights[rows],
                patience=watching(run).patience if stops else 0,
            ),
            setup=Setup(combine=run.fusion.combine, label_holder=run.label_holder),
        )
        self.records_ = self._learn(self.federation_, run)
        self._models: list[nn.Module] = [_for_prediction(module) for module in self.federation_.models]
        self._fusion: Fusion = _for_prediction(self.federation_.fusion)
        self._together = presence.patterns if (presence := self.federation_.server.plan.presence) else None

    def _fit_encoders(self, frame: polars.DataFrame, rows: NDArray[np.int64]) -> None:
        """Fit an encoder of every party's columns to the training rows, or keep those of the last fit."""
        parties = parties_of(self.columns, frame.columns)
        if self._continues:
            estimator_warm_start.check_columns(self.encoders_, parties)
            self._warn_of_changes(frame)
            return
        settings, own = table_settings(parties, frame.columns, self.types, self.missing), self._own_rows(frame[rows])
        with _input():
            self.encoders_: dict[str, Encoder] = {
                n: Encoder.fit(own[n].select(c), settings[n]) for n, c in parties.items()
            }
        _warn([text for e in self.encoders_.values() for text in (*e.doubts, *(u.text() for u in e.unreadable(frame)))])

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _stopping(self, run: RunConfig, rows: int) -> tuple[bool, float]:
        """Return whether validation rows decide when to stop, and the share of the rows that is held out."""
        share = run.data.validation if self.validation_fraction is None else float(self.validation_fraction)
        if self.early_stopping == "auto":
            stops = share * rows >= FEWEST_VALIDATION
        elif isinstance(self.early_stopping, bool | np.bool):
            stops = bool(self.early_stopping)
        else:
            raise ConfigError(f"early_stopping: expected True, False or 'auto', got {self.early_stopping!r:.80}.")
        if stops and not share:
            raise ConfigError("early_stopping needs validation rows: set validation_fraction, for example to 0.1.")
        return stops, share if stops or self.validation_fraction is not None else 0.0

    def _run(self, seed: int, loss: str) -> RunConfig:
        """Return the parameters as a checked run configuration; what is None has the default of run files on tables."""
        whole = {name: index(getattr(self, name)) for name in ("epochs", "batch_size")}
        hidden = None if self.hidden is None else [operator.index(units) for units in self.hidden]
        linear = {"name": "linear"} if self.model == "linear" else {"hidden": hidden}
        optimizer = None if self.optimizer is None else dict(self.optimizer)
        compressors = {name: getattr(self, name) for name in ("compressor", "down")}
        table = {
            "seed": seed,
            "loss": loss,
            "label_holder": self.label_holder,
            "data": {"name": TABLES},
            "model": given({"width": index(self.width), **linear}),
            "method": {"name": self.method, **{name: dict(table) for name, table in given(compressors).items()}},
            "agreement": {"labels": self.labels},
            **given(whole | {"optimizer": optimizer}),
        }
        run = read(RunConfig, table, type(self).__name__)
        whole_number("epochs", run.epochs, least=1)
        return run

    def _local_model(self, run: RunConfig, name: str, layout: Layout) -> nn.Module:
        chosen, width = run.model, run.model.width
        make: Callable[[], nn.Module]
        if self.model == "table":
            make = partial(table_model, layout, width, chosen.hidden, chosen.activation, chosen.last, chosen.skip)
        elif self.hidden:
            raise ConfigError(f"hidden = {list(self.hidden)} needs model = 'table': remove it.")
        elif callable(self.model):
            make = partial(self.model, layout, width)
        elif self.model == "linear":
            make = partial(linear_model, layout, width)
        else:
            hint = nearest(str(self.model), ("table", "linear"))
            raise ConfigError(f"there is no model {self.model!r}. {hint} Or pass a function (layout, width) -> module.")
        return seeded_model(derive(run.seed, "party", name, "init"), make)

    def _learn(self, federation: Federation, run: RunConfig) -> list[Record]:
        """Train and return the records; with early stopping, the best model is in place then."""
        records: list[Record] = []
        for record in federation.train(run.epochs, watching(run).every, gradient=False):
            records.append(record)
            if self.verbose:
                print(_line(record, run.epochs))
        return records

    def _features(self, frame: polars.DataFrame) -> dict[str, Tensor]:
        """Return every party's encoded columns."""
        with _input():
            return {name: torch.from_numpy(encoder.transform(frame)) for name, encoder in self.encoders_.items()}

    def _warn_of_changes(self, frame: polars.DataFrame) -> None:
        """Warn once about all that differs from the training rows."""
        texts, own = [], {name: rows for name, rows in self._own_rows(frame).items() if rows.height}
        for name, rows in own.items():
            encoder = self.encoders_[name]
            found = (u.text() for u in encoder.unreadable(rows))
            texts += [f"{name}, {text}" for text in (*found, *warnings_about(changes(encoder, rows)))]
        _warn(texts)

    def _output(self, X: Any) -> NDArray[np.float64]:
        """Return the network's output in float64, so that the output of a row does not depend on the other rows."""
        check_is_fitted(self)
        frame = self._table(X, fitting=False)
        features = [x.double() for x in self._features(frame).values()]
        self._warn_of_changes(frame)
        present = self._present(frame)
        if present is not None and self._together is not None:
            estimator_subsets.check_trained(present, list(self.encoders_), self._together)
        with self._computing():
            output: NDArray[np.float64] = measure.predict(self._models, self._fusion, features, present).numpy()
        return output

    def _present(self, frame: polars.DataFrame) -> Tensor | None:
        """Return which rows every party has; None: all have all."""
        return estimator_subsets.present(frame, parties_of(self.columns, frame.columns)) if self.subsets else None

    def _own_rows(self, frame: polars.DataFrame) -> dict[str, polars.DataFrame]:
        """Return the rows that every party has."""
        return estimator_subsets.own_rows(frame, list(parties_of(self.columns, frame.columns)), self._present(frame))


@contextmanager
def _input() -> Iterator[None]:
    """Turn a `DataError` into an `InputError`, as scikit-learn expects, with advice that needs no run file."""
    try:
        yield
    except DataError as error:
        advice = " Correct this column of X, convert it or leave it out." if error.advice else ""
        raise InputError(f"{error.what}{advice}") from error


def _warn(texts: Sequence[str]) -> None:
    """Warn once about all of these."""
    if texts:
        warnings.warn("\n".join(texts), DataWarning, stacklevel=4)


def _line(record: Record, epochs: int) -> str:
    scores = record.validation or record.train
    text = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
    return f"epoch {record.epoch} of {epochs}: {text}, {record.bytes_up:,} bytes up"


def _for_prediction(module: Any) -> Any:
    """Return a copy of a trained module in float64 without gradients."""
    clone = copy.deepcopy(module).double().requires_grad_(False)
    clone.zero_grad(set_to_none=True)
    return clone
