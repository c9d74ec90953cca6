"""A run as a file: TOML to frozen dataclasses. An unknown key is refused with the nearest known one."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from efvfl.config import own_metrics as own_metrics
from efvfl.config import ownership, table_defaults
from efvfl.config.agreement import AgreementConfig as AgreementConfig
from efvfl.config.column_types import ColumnType
from efvfl.config.compressors import compressor_from as compressor_from
from efvfl.config.data import DataConfig as DataConfig
from efvfl.config.memories import kind_of
from efvfl.config.method import MethodConfig as MethodConfig
from efvfl.config.network import NetworkConfig as NetworkConfig
from efvfl.config.network import check_address as check_address
from efvfl.config.parsing import parse
from efvfl.config.parsing import read as read
from efvfl.config.party_training import PartyTrainingConfig as PartyTrainingConfig
from efvfl.core import ranges, rules
from efvfl.core.protection import Protection
from efvfl.core.row_protection import RowProtection
from efvfl.errors import ConfigError, system_text
from efvfl.training.options import Evaluation

Device = Literal["cpu", "cuda", "mps"]

SGD_RATE = 1.0  # of [optimizer], unless it says otherwise


@dataclass(frozen=True)
class ModelConfig:
    """A local model: layers of the `mlp`, or your own torch module."""

    name: str = "mlp"  # or resnet18, mvcnn, or 'package.module:attribute'
    hidden: tuple[int, ...] = ()
    width: int = 16  # size of the representation
    activation: str = "relu"
    last: str = "sigmoid"  # activation of the representation
    skip: bool = False  # also a linear map of the inputs, beside the hidden layers
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of resnet18, mvcnn or your own module
    device: Device = "cpu"  # where it computes
    precision: Literal["float32", "bfloat16"] = "float32"  # what it computes in; all else stays in float32

    def __post_init__(self) -> None:
        """Refuse layers without entries, and settings that this model does not take."""
        ranges.check_fields(self, "model")
        if ":" in self.name or self.name in ("linear", "mvcnn", "resnet18"):  # a name with a typo is answered later
            _refuse_useless(self, "model", ("hidden", "activation", "last", "skip"))
        if self.name in ("mlp", "linear"):
            _refuse_useless(self, "model", ("options",))


@dataclass(frozen=True)
class FusionConfig:
    """How representations are combined, and the layers after that."""

    combine: Literal["sum", "mean", "concat"] = "mean"
    shows_presence: bool = False  # a further input of the head for each party: 1 where it has the row, else 0
    name: str = "mlp"  # or 'package.module:attribute'
    hidden: tuple[int, ...] = ()
    activation: str = "relu"
    skip: bool = False  # also a linear map of the combination, beside the hidden layers
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse layers without entries, and settings that this module does not take."""
        ranges.check_fields(self, "fusion")
        if ":" in self.name:
            _refuse_useless(self, "fusion", ("hidden", "activation", "skip"))
        if self.name == "mlp":
            _refuse_useless(self, "fusion", ("options",))


def _refuse_useless(module: ModelConfig | FusionConfig, table: str, names: tuple[str, ...]) -> None:
    """Refuse what is set although the module of this name does not get it."""
    for f in fields(module):
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if f.name in names and getattr(module, f.name) != default:
            advice = "Give it in options" if ":" in module.name and f.name != "options" else "Leave it out"
            raise ConfigError(
                f"{table}.{f.name} is set, but it would have no effect: {module.name!r} does not get it. {advice}."
            )


@dataclass(frozen=True)
class OwnData:
    """A party's own file of rows: arrays (.npz) or a table (.csv, .parquet, .arrow)."""

    path: str  # relative to this file; .npz with `x`, `ids` and, where labels are shared, `y`
    new: str = ""  # the same for rows that were added later, to predict; no labels are needed
    id: str = ""  # table: the column that names the rows
    label: str = ""  # table: the column to predict, at the label holder only
    weight: str = ""  # table: beside the label, the column that says how much a row counts in the loss
    columns: tuple[str, ...] = ()  # table: those to use; empty: all that are left
    leave_out: tuple[str, ...] = ()  # table: those not to use
    types: dict[str, ColumnType] = field(default_factory=dict)
    categories: Literal["onehot", "embed"] = "onehot"  # table: how the model sees categories
    missing: tuple[str, ...] | None = None  # table: texts that mean a missing value; None: those of docs/tables.md
    bins: int = 16  # table: a number is cut into so many for the model, at most; 0: none


ColumnConsent = Literal["no", "own", "shared"]


@dataclass(frozen=True)
class LimitConfig:
    """What a party is ready to do; 0: no limit. Its own copy of the file counts, nobody else's."""

    bytes: int = 0  # training bytes it sends
    steps: int = 0
    rows: int | None = None  # exact representations it gives by id; left out: 10 for each row it holds, 100,000 or more
    epsilon: float = 0.0  # what may be spent on a row, where [[party]] protect has noise: it stops when that is spent
    train_rows: bool = False  # also gives its training rows one after another, without ids; they count as `rows`
    columns: ColumnConsent = "no"  # whether it has its columns' worth looked at: for itself, or also with their names

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        ranges.check_fields(self, "limits")


@dataclass(frozen=True)
class PartyConfig:
    """What is special about one party."""

    name: str
    model: ModelConfig | None = None  # in place of [model]
    data: OwnData | None = None  # in place of its columns in [data]
    private_seed: int | None = None  # of its initial parameters and noise; left out: follows from `seed`
    limits: LimitConfig = field(default_factory=LimitConfig)
    protect: RowProtection = field(default_factory=RowProtection)  # of its rows, where they leave it
    training: PartyTrainingConfig = field(default_factory=PartyTrainingConfig)  # of its local model, if not as all
    report_seconds: float = 1.0  # `efvfl run`: virtual time from a message to its report; no effect on a network
    ids: int = 0  # `efvfl align`: announced size of its table; the label holder refuses 10 % more; 0: any size

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        ranges.check_fields(self, "party")
        if self.limits.epsilon and not self.protect.noise:
            raise ConfigError(
                f"limits.epsilon of {self.name!r} needs protect.clip and protect.noise: without noise nothing is "
                "guaranteed, and there is nothing to count."
            )


@dataclass(frozen=True)
class RunConfig:
    """One training run. Read from a file about tables, what it leaves out is as in `table_defaults`."""

    seed: int = 0
    epochs: int = 20
    batch_size: int = 128  # 0: full batch
    batch_order: Literal["shuffle", "independent"] = "shuffle"
    loss: str = "cross_entropy"  # with tables it follows from the label, if it is left out
    metrics: tuple[str, ...] = ()  # further ones of your own, as 'package.module:function' of output and labels
    class_weights: str | tuple[float, ...] = ()  # "balanced", or one for each class; empty: all rows count alike
    memory: Literal["ram", "mapped"] = "ram"  # where surrogates are; mapped: in scratch files, for very many rows
    threads: int = 1  # of torch; small models are fastest with one, 0: as torch decides
    observe_every: int | None = None  # epochs between two records; left out: 1, with tables a fiftieth of all
    note_every: int = 0  # steps between two notes of what is sent, lost and learnt, in records and figures; 0: none
    patience: int | None = None  # epochs without a better validation loss: it stops, and keeps the best; 0: it does not
    evaluation: Evaluation | None = None  # of held-out rows; left out: exact, with tables or patience compressed
    observe_gradient: bool = True  # also the full gradient and the distortion, which cost about an epoch
    label_holder: str = ""  # the party, if any, that sits next to the server
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    agreement: AgreementConfig = field(default_factory=AgreementConfig)
    protect: Protection = field(default_factory=Protection)  # the label holder's own choice
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "SGD", "lr": SGD_RATE})
    party: tuple[PartyConfig, ...] = ()
    private_seed: int | None = (
        None  # the server's, of x0, its noise and stratified splits; left out: follows from `seed`
    )
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and settings that would have no effect."""
        ranges.check_fields(self)
        _check_names([party.name for party in self.party])
        rules.check(self.choices)
        if isinstance(self.class_weights, str) and self.class_weights != "balanced":
            raise ConfigError(f"class_weights: expected 'balanced' or a list of numbers, got {self.class_weights!r}.")
        if self.class_weights and self.loss != table_defaults.FROM_LABEL:
            check_class_weights(self.loss)

    @property
    def choices(self) -> rules.Choices:
        """What the table of rules looks at. Nothing of yours is imported for it: that may not be possible yet."""
        method, kind, remembers = self.method, kind_of(self.method.memory), self.method.remembers
        return rules.Choices(
            agreement=method.agreed(self.agreement.build()),
            memory=remembers and kind.surrogate,
            own=remembers and bool(kind.own),
            idle_memory=not remembers and bool(method.memory),
            lossless=method.lossless,
            down=bool(method.down),
            sent_only=method.cotangents == "sent",
            fusion=bool(method.fusion),
            start=method.start,
            first=bool(method.first),
            combine=self.fusion.combine,
            protect=self.protect.on,
            releases=self.protect.releases,
            rows=any(party.protect.on for party in self.party),
            exact=self.evaluation == "exact",
            clip=self.protect.clip > 0,
            visits=self.protect.visits.on,
            stratify=self.data.stratify,
            balanced=self.class_weights == "balanced",
            mapped=self.memory == "mapped",
            on_missing=self.network.on_missing,
            decides=self.decides,
            evaluation=self.evaluation,
            sampled=self.agreement.subsets == "sampled",
            own_local_steps=any(party.training.local_steps for party in self.party),
            own_optimizer=any(party.training.optimizer for party in self.party),
            plateau=_on_plateau(self.optimizer),
        )

    @property
    def weighted(self) -> bool:
        """Whether rows have weights, as far as this copy of the file says."""
        return bool(self.data.weight or any(party.data and party.data.weight for party in self.party))

    @property
    def decides(self) -> bool:
        """Whether the file itself asks for something to be decided by the loss of validation rows."""
        return bool(self.patience) or _on_plateau(self.optimizer)

    @staticmethod
    def completed(table: dict[str, Any]) -> dict[str, Any]:
        """Return settings with the defaults of tables, if the run is on tables."""
        return table_defaults.completed(table)

    def of(self, name: str) -> PartyConfig:
        """Return what is special about a party; nothing, if the file does not mention it."""
        return next((party for party in self.party if party.name == name), PartyConfig(name))


def _on_plateau(optimizer: dict[str, Any]) -> bool:
    scheduler = optimizer.get("scheduler")
    return isinstance(scheduler, dict) and scheduler.get("name") == "ReduceLROnPlateau"


def check_class_weights(loss: str) -> None:
    """Refuse weights of classes for a loss that has none."""
    if loss not in ("cross_entropy", "binary_cross_entropy"):
        raise ConfigError(f"class_weights are set, but loss = {loss!r} has no classes. Leave them out.")


def _check_names(names: list[str]) -> None:
    for name in names:
        if not 0 < len(name) <= 200 or not name.isprintable() or set(name) & {"/", "\\"}:  # files have this name
            raise ConfigError(f"[[party]] name: expected 1 to 200 characters without slashes, got {name!r:.80}.")
        if names.count(name) > 1:
            raise ConfigError(f"the file has {names.count(name)} [[party]] of the name {name!r}: each needs its own.")
        if name == "server":
            raise ConfigError("a [[party]] has the name 'server', which is the label holder's certificate: rename it.")


def on_device(config: RunConfig, device: Device) -> RunConfig:
    """Have every local model compute on this device, whatever the file says."""
    parties = tuple(replace(p, model=replace(p.model, device=device)) if p.model else p for p in config.party)
    return replace(config, model=replace(config.model, device=device), party=parties)


def load(path: Path) -> RunConfig:
    """Read a run from a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a null character
        raise ConfigError(f"cannot read {path}: {system_text(error)}.") from error
    table = parse(text, str(path))
    if ownership.is_own(table):
        raise ConfigError(f"{path} is one participant's own file: expected one file with the settings of all.")
    return read(RunConfig, table, path.name)
