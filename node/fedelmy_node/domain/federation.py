"""What the sites agree on before a run: classes, input format, model, training, strategy, and who takes part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from fedelmy_node.config.decode import at_most
from fedelmy_node.domain.names import Address, SiteName, place, site_name
from fedelmy_node.errors import ConfigError

__all__ = [
    "Setting", "TopologySetting", "WireDtype", "LossName", "Select", "OnUnreachable", "InputFormat", "Task",
    "ModelSpec", "Training", "StrategySpec", "Recipe", "Absence", "Member", "Federation", "federation_name",
    "seconds_of",
]  # fmt: skip

Setting = str | int | float | bool
"""A value that a strategy's settings may have in a plan."""
TopologySetting = Any
"""A value that a topology's settings may have: no plan carries it, and the topology's own `Settings` judge it."""
WireDtype = Literal["float32", "bfloat16", "float16"]
"""The types that floats may have in a bundle."""
LossName = Literal["cross_entropy", "prior_corrected"]
"""What training minimises."""
Select = Literal["accuracy", "balanced_accuracy", "last"]
"""Which epoch of a pool member is kept."""
OnUnreachable = Literal["wait", "skip", "abort"]
"""What the others do about a site that cannot be reached."""
MAX_CLASSES: Final = 100_000
MAX_NAME: Final = 200
"""Characters of names that somebody else gives: classes, models, strategies, settings."""
MAX_SETTINGS: Final = 100
MAX_FEATURES: Final = 1000
"""Points of a picture that people can look at."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFormat:
    """How every site turns an image into the tensor that the model sees."""

    height: int
    """Rows of the tensor; images of other sizes are resized."""
    width: int
    """Columns of the tensor."""
    channels: Literal[1, 3]
    """1: colour images become grey; 3: grey images are repeated."""
    resize: Literal["stretch", "fit", "crop"] = "stretch"
    """stretch ignores the aspect ratio; fit pads with black; crop cuts the centre out."""
    window: tuple[float, float] | None = None
    """Stored values that become 0 and 1; without it the range of the file's type (255, 65535), or 0..1 for floats."""
    mean: tuple[float, ...] = ()
    """Subtracted per channel after scaling to 0..1; empty: no normalisation."""
    std: tuple[float, ...] = ()
    """Divided by per channel; empty: no normalisation."""

    def __post_init__(self) -> None:
        _require(1 <= self.height <= 4096 and 1 <= self.width <= 4096, "height and width must be 1 to 4096")
        _require(len(self.mean) == len(self.std), "mean and std must have one value per channel each")
        _require(len(self.mean) in (0, self.channels), f"mean and std need {self.channels} value(s), one per channel")
        _require(all(value > 0 for value in self.std), "every std must be above 0")
        _require(self.window is None or self.window[0] < self.window[1], "window must be [low, high] with low < high")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is classified: the classes in the order of the model's outputs, and the input."""

    classes: tuple[str, ...] = field(metadata=at_most(MAX_CLASSES))
    """Names in the order of the model's outputs; every site maps its own data by these names."""
    input: InputFormat
    """The tensor that the model sees."""

    def __post_init__(self) -> None:
        _require(2 <= len(self.classes) <= MAX_CLASSES, "classes must name at least two classes")
        _require(len(set(self.classes)) == len(self.classes), "classes must not repeat a name")
        fitting = all(name and len(name) <= MAX_NAME for name in self.classes)
        _require(fitting, f"class names must have 1 to {MAX_NAME} characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Which architecture is trained."""

    name: str
    """One of the built-in models, or `torchvision:NAME`."""
    initial: Literal["shared", "separate"] = "shared"
    """Whether sites that begin with a new model begin with the same one, or each with its own."""

    def __post_init__(self) -> None:
        _require(0 < len(self.name) <= MAX_NAME, f"a model's name has 1 to {MAX_NAME} characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """How every model of a pool is fitted."""

    epochs: int
    """Passes over the training data per pool member (paper: E_local)."""
    learning_rate: float = 1e-3
    """Of Adam."""
    weight_decay: float = 1e-4
    """Of Adam."""
    batch_size: int = 128
    """Samples per optimizer step; the last batch of an epoch may be smaller."""
    augment: tuple[Literal["crop", "flip", "rotate"], ...] = ()
    """crop: shift by up to an eighth of the size (4 pixels of 32); flip: left-right; rotate: up to 15 degrees."""
    loss: LossName = "cross_entropy"
    """prior_corrected: the logarithm of the site's own class frequencies is added to the scores, in the loss only."""
    select: Select = "accuracy"
    """Which epoch is kept: the best on the site's validation data by this measure, or the last one."""
    threads: int = 2
    """CPU threads of a trainer; part of the plan because the last bits of the result depend on it."""

    def __post_init__(self) -> None:
        _require(1 <= self.epochs <= 1_000_000, "epochs must be 1 to 1,000,000")
        _require(0 < self.learning_rate <= 100, "learning_rate must be above 0 and at most 100")
        _require(0 <= self.weight_decay <= 100, "weight_decay must be 0 to 100")
        _require(1 <= self.batch_size <= 1_000_000, "batch_size must be 1 to 1,000,000")
        _require(1 <= self.threads <= 1024, "threads must be 1 to 1024")
        _require(len(set(self.augment)) == len(self.augment), "augment must not repeat an entry")


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategySpec:
    """What a train step computes, by name, with the settings that the strategy itself validates."""

    name: str
    """One of the registered strategies."""
    settings: Mapping[str, Setting] = field(default_factory=dict, metadata=at_most(MAX_SETTINGS))
    """Only what differs from the strategy's defaults."""

    def __post_init__(self) -> None:
        _require(0 < len(self.name) <= MAX_NAME, f"a strategy's name has 1 to {MAX_NAME} characters")
        texts = [*self.settings, *(value for value in self.settings.values() if isinstance(value, str))]
        _require(all(len(text) <= MAX_NAME for text in texts), f"settings have at most {MAX_NAME} characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything of a federation that changes the numbers; sites and addresses do not."""

    seed: int
    """Of the run: every random number derives from it."""
    task: Task
    model: ModelSpec
    training: Training
    strategy: StrategySpec
    wire_dtype: WireDtype = "float32"
    """How floats are stored in bundles, and so how they travel; every site computes in float32 again."""
    features: int = 0
    """Test samples per site whose features are asked for, for a t-SNE in the report; sites need not tell them."""

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**53, "seed must be 0 or a positive integer below 2^53")
        _require(0 <= self.features <= MAX_FEATURES, f"features must be 0 to {MAX_FEATURES}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """What the others do about a site that cannot be reached, and when."""

    on_unreachable: OnUnreachable = "wait"
    """wait: for ever; skip: go on without it; abort: end the run."""
    patience_seconds: float = 3600.0
    """How long a site must be out of reach before it is skipped or the run is aborted."""

    def __post_init__(self) -> None:
        _require(0 < self.patience_seconds <= 366 * 86_400, "patience must be above 0 and at most a year")


def federation_name(text: str) -> str:
    """A federation's name: it begins run ids."""
    legal = re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", text) is not None
    _require(legal, f"the name {text[:80]!r} must have 1 to 32 lower-case letters, digits and hyphens")
    return text


def seconds_of(duration: str) -> float:
    """`90s`, `30m`, `12h` or `2d` in seconds."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])", duration)
    _require(match is not None, f"{duration!r} is not a duration: write it as 90s, 30m, 12h or 2d")
    assert match is not None
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One site of a federation."""

    name: SiteName
    """As in its certificate."""
    address: Address
    """Where the others reach it."""
    data: str | None = None
    """Used by `fedelmy-launch simulate` alone; a real site's data is its own business."""
    indices: str | None = None
    """Likewise: the subset of `data` that stands for this site."""
    on_unreachable: OnUnreachable | None = None
    """What the others do if this site cannot be reached; default: as the federation says."""
    patience: str | None = None
    """How long they wait first, as 90s, 30m, 12h or 2d; default: as the federation says."""
    certificate: str | None = None
    """How the launcher knows its certificate, if another CA chose the name: `san:DNS-NAME` or `subject:RFC4514`."""
    fingerprint: str | None = None
    """Of the only key that the launcher takes for this site's."""

    def __post_init__(self) -> None:
        site_name(self.name)
        place(self.address)
        if self.patience is not None:
            Absence(patience_seconds=seconds_of(self.patience))


@dataclass(frozen=True, kw_only=True, slots=True)
class Federation:
    """The sites, what they agree on, and how a run is wired."""

    name: str
    """For people, and the beginning of the run ids."""
    topology: str
    """One of the registered topologies."""
    order: Literal["listed", "random"]
    """The order in which a sequential topology visits the sites; random is drawn from the seed."""
    deliver: Literal["all", "last"]
    """Who receives the result: every site, or only the one that finished it."""
    members: tuple[Member, ...]
    """In the order of the file."""
    recipe: Recipe
    absence: Absence = field(default_factory=Absence)
    """What is done about sites that cannot be reached, unless a site's own entry says otherwise."""
    topology_settings: Mapping[str, TopologySetting] = field(default_factory=dict, metadata=at_most(MAX_SETTINGS))
    """What the topology's own `Settings` take."""

    def absence_of(self, member: Member) -> Absence:
        """What is done if this site cannot be reached."""
        patience = self.absence.patience_seconds if member.patience is None else seconds_of(member.patience)
        return Absence(on_unreachable=member.on_unreachable or self.absence.on_unreachable, patience_seconds=patience)

    def __post_init__(self) -> None:
        federation_name(self.name)
        _require(1 <= len(self.members) <= 10_000, "a federation needs at least one site")
        names = [member.name for member in self.members]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        _require(not twice, f"two sites have the same name: {', '.join(twice)[:100]}")
