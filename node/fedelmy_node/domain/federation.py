"""What the sites of a federation agree on: classes, input, model, training, strategy, members."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import Address, SiteName, at_most, later, node_address, site_name

Setting = str | int | float | bool
"""A value of a strategy's settings in a plan."""
TopologySetting = Any
"""A value of a topology's settings; plans do not contain it, the topology's `Settings` check it."""
WireDtype = Literal["float32", "bfloat16", "float16"]
LossName = Literal["cross_entropy", "prior_corrected"]
OptimizerName = Literal["adam", "adamw", "sgd"]
Schedule = Literal["constant", "cosine", "step"]
Select = Literal["accuracy", "balanced_accuracy", "last"]
OnUnreachable = Literal["wait", "skip", "abort"]
MAX_CLASSES: Final = 100_000
MAX_NAME: Final = 200
"""Characters of the names of classes, models, strategies and settings."""
MAX_SETTINGS: Final = 100
MAX_FEATURES: Final = 1000
"""Points that remain readable in one plot."""
MAX_PATTERNS: Final = 1000
_MAX_SIDE: Final = 4096
MAX_VECTOR: Final = 65_536
_WEIGHTS_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,180}\.safetensors")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFormat:
    """How every site converts a sample into the model's input tensor."""

    height: int
    """Rows of the tensor; other image sizes are resized."""
    width: int
    channels: Literal[1, 3]
    """1: convert colour to grey; 3: repeat the grey channel."""
    resize: Literal["stretch", "fit", "crop"] = "stretch"
    """stretch ignores the aspect ratio; fit pads with black; crop keeps the centre."""
    window: tuple[float, float] | None = None
    """Stored values that map to 0 and 1; default: the range of the file's type, 0..1 for floats."""
    mean: tuple[float, ...] = ()
    """Subtracted per channel after scaling to 0..1; empty: no normalisation."""
    std: tuple[float, ...] = ()
    """Divides each channel; empty: no normalisation."""
    kind: Literal["image", "vector"] = field(default="image", metadata=later())
    """vector: `width` numbers that are used as they are; height and channels are 1."""

    def __post_init__(self) -> None:
        if self.kind == "vector":
            flat = self.height == self.channels == 1 and 1 <= self.width <= MAX_VECTOR
            _require(flat, f"a vector has height 1, channels 1 and width 1 to {MAX_VECTOR}")
            images_only = "resize and window are for images, not for vectors"
            _require(self.resize == "stretch" and self.window is None, images_only)
        else:
            sized = 1 <= self.height <= _MAX_SIDE and 1 <= self.width <= _MAX_SIDE
            _require(sized, f"height and width must be 1 to {_MAX_SIDE}")
        paired = len(self.mean) == len(self.std)
        _require(paired, "mean and std must have one value per channel each")
        fitting = len(self.mean) in (0, self.channels)
        _require(fitting, f"mean and std need {self.channels} value(s), one per channel")
        _require(all(value > 0 for value in self.std), "every std must be above 0")
        ascending = self.window is None or self.window[0] < self.window[1]
        _require(ascending, "window must be [low, high] with low < high")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The classification task: classes and input format."""

    classes: tuple[str, ...] = field(metadata=at_most(MAX_CLASSES))
    """Names in the order of the model's outputs; every site maps its data by these names."""
    input: InputFormat

    def __post_init__(self) -> None:
        _require(2 <= len(self.classes) <= MAX_CLASSES, "classes must name at least two classes")
        _require(len(set(self.classes)) == len(self.classes), "classes must not repeat a name")
        fitting = all(name and len(name) <= MAX_NAME for name in self.classes)
        _require(fitting, f"class names must have 1 to {MAX_NAME} characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsFile:
    """A file that every site has in its own directory of weights."""

    file: str
    """Its name there, never a path."""
    sha256: str
    """Digest of the whole file, hexadecimal."""

    def __post_init__(self) -> None:
        named = _WEIGHTS_FILE.fullmatch(self.file) is not None
        _require(named, "file must be the name of a .safetensors file, without a directory")
        digest = _SHA256.fullmatch(self.sha256) is not None
        _require(digest, "sha256 must be 64 lower-case hexadecimal digits")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """What a bundle with only the trained tensors belongs to; part of its metadata."""

    weights: str
    """sha256 of the file with all other tensors."""
    train: str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """The architecture to train, what it starts from, and which part of it is trained."""

    name: str
    """One of the built-in models, `torchvision:NAME` or `timm:NAME`."""
    initial: Literal["shared", "separate"] = "shared"
    """Whether sites that start with a new model share its initial weights."""
    weights: WeightsFile | None = field(default=None, metadata=later())
    """Start from this file instead of random values."""
    train: str | tuple[str, ...] = field(
        default="all", metadata={**later(), **at_most(MAX_PATTERNS)}
    )
    """all; head: the last layer; or patterns of tensor names. The rest is frozen and never sent."""

    def __post_init__(self) -> None:
        _require(0 < len(self.name) <= MAX_NAME, f"a model's name has 1 to {MAX_NAME} characters")
        if isinstance(self.train, str):
            known = self.train in ("all", "head")
            _require(known, 'train must be "all", "head" or a list of patterns')
        else:
            sized = self.train and all(0 < len(pattern) <= MAX_NAME for pattern in self.train)
            message = f"train must list at least one pattern of 1 to {MAX_NAME} characters"
            _require(bool(sized), message)
        # Random values depend on the version of torch: sites could differ without noticing.
        message = (
            'train other than "all" needs weights: the frozen part must be the same at all sites'
        )
        _require(self.train == "all" or self.weights is not None, message)

    @property
    def frozen(self) -> Frozen | None:
        """What bundles leave out; None if they have the whole model."""
        if self.weights is None or self.train == "all":
            return None
        train = self.train if isinstance(self.train, str) else tuple(sorted(set(self.train)))
        return Frozen(weights=self.weights.sha256, train=train)


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """How every model of a pool is trained; the defaults are the paper's."""

    epochs: int
    """Passes over the training data per pool member (E_local in the paper)."""
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    batch_size: int = 128
    """Samples per optimizer step; the last batch of an epoch may be smaller."""
    augment: tuple[Literal["crop", "flip", "rotate"], ...] = ()
    """crop: shift by up to 1/8 of the size; flip: left-right; rotate: by up to 15 degrees."""
    loss: LossName = "cross_entropy"
    """prior_corrected: adds the log of the site's class frequencies to the logits in the loss."""
    select: Select = "accuracy"
    """Which epoch to keep: the best by this metric on the validation data, or the last one."""
    threads: int = 2
    """CPU threads of a trainer; in the plan because the result's last bits depend on it."""
    precision: Literal["float32", "bfloat16"] = field(default="float32", metadata=later())
    """bfloat16: activations and products in training; weights, gradients and results stay float32."""
    optimizer: OptimizerName = field(default="adam", metadata=later())
    """Weight decay is part of the gradient in adam and sgd; adamw applies it to the weights."""
    decay: Literal["all", "weights"] = field(default="all", metadata=later())
    """What `weight_decay` applies to; weights: not to biases and normalisation, that is, not to
    parameters with less than two dimensions."""
    beta1: float = field(default=0.9, metadata=later())
    """adam, adamw: decay of the mean of the gradients."""
    beta2: float = field(default=0.999, metadata=later())
    """adam, adamw: decay of the mean of the squared gradients."""
    eps: float = field(default=1e-8, metadata=later())
    """adam, adamw: added to the divisor."""
    momentum: float = field(default=0.0, metadata=later())
    """sgd: decay of the momentum buffer; 0: none."""
    nesterov: bool = field(default=False, metadata=later())
    """sgd: Nesterov momentum."""
    schedule: Schedule = field(default="constant", metadata=later())
    """The learning rate over a fit: constant, cosine to 0, or reduced every few epochs."""
    schedule_period: int | None = field(default=None, metadata=later())
    """step: after how many epochs the learning rate is multiplied by `schedule_factor`, again and
    again."""
    schedule_factor: float = field(default=0.1, metadata=later())
    schedule_warmup: float = field(default=0.0, metadata=later())
    """Epochs, also fractions, in which the learning rate rises linearly at the start of a fit."""
    clip_norm: float | None = field(default=None, metadata=later())
    """The largest norm of a gradient; longer ones are scaled down to it."""
    sam_rho: float = field(default=0.0, metadata=later())
    """Radius of sharpness-aware minimisation (SAM), which computes each gradient twice; 0: off."""
    early_stopping: int | None = field(default=None, metadata=later())
    """End a fit after so many epochs without a better value of `select`."""
    label_smoothing: float = field(default=0.0, metadata=later())
    """The share of each label that is spread over all classes."""
    class_weights: Literal["balanced"] | Mapping[str, float] | None = field(
        default=None, metadata={**at_most(MAX_CLASSES), **later()}
    )
    """Weights of the samples by class, or balanced: inverse to the site's own class counts."""
    distil_absent: float = field(default=0.0, metadata=later())
    """Weight of the distillation from the received model for classes that the site lacks; 0: off."""
    distil_temperature: float = field(default=2.0, metadata=later())
    """Divides the scores that are compared."""
    absent_below: int = field(default=1, metadata=later())
    """A class with fewer training samples at a site counts as one that it lacks."""

    def __post_init__(self) -> None:
        _require(1 <= self.epochs <= 1_000_000, "epochs must be 1 to 1,000,000")
        _require(0 < self.learning_rate <= 100, "learning_rate must be above 0 and at most 100")
        _require(0 <= self.weight_decay <= 100, "weight_decay must be 0 to 100")
        _require(1 <= self.batch_size <= 1_000_000, "batch_size must be 1 to 1,000,000")
        _require(1 <= self.threads <= 1024, "threads must be 1 to 1024")
        _require(len(set(self.augment)) == len(self.augment), "augment must not repeat an entry")
        self._check_optimizer()
        self._check_schedule()
        clipped = self.clip_norm is None or 0 < self.clip_norm <= 1e6
        _require(clipped, "clip_norm must be above 0 and at most 1,000,000")
        _require(0 <= self.sam_rho <= 100, "sam_rho must be 0 to 100")
        patient = self.early_stopping is None or 1 <= self.early_stopping <= 1_000_000
        _require(patient, "early_stopping must be 1 to 1,000,000 epochs")
        judged = self.early_stopping is None or self.select != "last"
        _require(judged, 'early_stopping needs select = "accuracy" or "balanced_accuracy"')
        _require(0 <= self.label_smoothing < 1, "label_smoothing must be 0 or more and below 1")
        weights = self.class_weights if isinstance(self.class_weights, Mapping) else {}
        weighing = all(0 < weight <= 1e6 for weight in weights.values())
        _require(weighing, "class_weights must be above 0 and at most 1,000,000")
        _require(0 <= self.distil_absent <= 1e6, "distil_absent must be 0 to 1,000,000")
        warm = 0.01 <= self.distil_temperature <= 1000
        _require(warm, "distil_temperature must be 0.01 to 1000")
        _require(1 <= self.absent_below <= 1_000_000, "absent_below must be 1 to 1,000,000")

    def _check_optimizer(self) -> None:
        if self.optimizer == "sgd":
            for key, value, default in (
                ("beta1", self.beta1, 0.9),
                ("beta2", self.beta2, 0.999),
                ("eps", self.eps, 1e-8),
            ):
                _require(value == default, f'{key} is for adam and adamw, not for "sgd"')
        else:
            _require(self.momentum == 0, f'momentum is for sgd, not for "{self.optimizer}"')
            _require(not self.nesterov, f'nesterov is for sgd, not for "{self.optimizer}"')
        _require(0 <= self.beta1 < 1, "beta1 must be 0 or more and below 1")
        _require(0 <= self.beta2 < 1, "beta2 must be 0 or more and below 1")
        _require(0 < self.eps <= 1, "eps must be above 0 and at most 1")
        _require(0 <= self.momentum < 1, "momentum must be 0 or more and below 1")
        _require(not self.nesterov or self.momentum > 0, "nesterov needs momentum above 0")

    def _check_schedule(self) -> None:
        if self.schedule == "step":
            given = self.schedule_period is not None
            _require(given, 'schedule = "step" needs schedule_period, in epochs')
        else:
            unused = self.schedule_period is None and self.schedule_factor == 0.1
            _require(unused, 'schedule_period and schedule_factor are for schedule = "step"')
        valid = self.schedule_period is None or 1 <= self.schedule_period <= 1_000_000
        _require(valid, "schedule_period must be 1 to 1,000,000 epochs")
        _require(0 < self.schedule_factor < 1, "schedule_factor must be above 0 and below 1")
        within = 0 <= self.schedule_warmup <= self.epochs
        _require(within, "schedule_warmup must be 0 or more and at most the epochs of a model")


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategySpec:
    """The strategy of the train steps; the strategy itself validates its settings."""

    name: str
    settings: Mapping[str, Setting] = field(default_factory=dict, metadata=at_most(MAX_SETTINGS))
    """In a federation file: what differs from the strategy's defaults. In a plan: all of them."""

    def __post_init__(self) -> None:
        named = 0 < len(self.name) <= MAX_NAME
        _require(named, f"a strategy's name has 1 to {MAX_NAME} characters")
        texts = [text for text in self.settings.values() if isinstance(text, str)]
        short = all(len(text) <= MAX_NAME for text in (*self.settings, *texts))
        _require(short, f"settings have at most {MAX_NAME} characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that affects the numerical result; sites and addresses do not."""

    seed: int
    """Every random number of the run derives from it."""
    task: Task
    model: ModelSpec
    training: Training
    strategy: StrategySpec
    wire_dtype: WireDtype = "float32"
    """Type of floats in bundles and on the wire; every site computes in float32."""
    features: int = 0
    """Test samples per site whose features the report's t-SNE plot requests; sites may decline."""

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**53, "seed must be 0 or a positive integer below 2^53")
        _require(0 <= self.features <= MAX_FEATURES, f"features must be 0 to {MAX_FEATURES}")
        weights = self.training.class_weights
        named = set(weights) if isinstance(weights, Mapping) else set()
        unknown = sorted(named.difference(self.task.classes))
        shown = unknown[0][:80] if unknown else ""
        _require(not unknown, f"class_weights has {shown!r}, which is not one of the classes")
        augmented = self.task.input.kind == "vector" and bool(self.training.augment)
        _require(not augmented, "augment is for images, not for vectors")


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """The policy for an unreachable site."""

    on_unreachable: OnUnreachable = "wait"
    """wait: forever; skip: continue without it; abort: end the run."""
    patience_seconds: float = 3600.0
    """How long a site must be unreachable before it is skipped or the run is aborted."""

    def __post_init__(self) -> None:
        valid = 0 < self.patience_seconds <= 366 * 86_400
        _require(valid, "patience must be above 0 and at most a year")


def federation_name(text: str) -> str:
    """Validate a federation's name, which is the prefix of its run ids."""
    legal = re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", text) is not None
    rule = "must have 1 to 32 lower-case letters, digits and hyphens"
    _require(legal, f"the name {text[:80]!r} {rule}")
    return text


def seconds_of(duration: str) -> float:
    """Convert `90s`, `30m`, `12h` or `2d` to seconds."""
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
    """Where the other sites connect to it."""
    data: str | None = None
    """Only for `fedelmy-launch simulate`: real sites configure their own data."""
    indices: str | None = None
    """Only for `fedelmy-launch simulate`: the subset of `data` for this site."""
    on_unreachable: OnUnreachable | None = None
    """Policy if this site is unreachable; default: the federation's."""
    patience: str | None = None
    """Patience before that policy applies, as 90s, 30m, 12h or 2d; default: the federation's."""
    certificate: str | None = None
    """Name in a certificate of another CA: `san:DNS-NAME` or `subject:RFC4514`."""
    fingerprint: str | None = None
    """Fingerprint of the only key that the launcher accepts for this site."""

    def __post_init__(self) -> None:
        site_name(self.name)
        node_address(self.address)
        if self.patience is not None:
            Absence(patience_seconds=seconds_of(self.patience))


@dataclass(frozen=True, kw_only=True, slots=True)
class Federation:
    """The sites, their shared recipe, and the topology of a run."""

    name: str
    """Prefix of the run ids."""
    topology: str
    order: Literal["listed", "random"]
    """In which order a sequential topology visits the sites; random derives from the seed."""
    deliver: Literal["all", "last"]
    """Who receives the result: every site, or only the last one."""
    members: tuple[Member, ...]
    """In the order of the file."""
    recipe: Recipe
    absence: Absence = field(default_factory=Absence)
    """Policy for unreachable sites, unless a member overrides it."""
    topology_settings: Mapping[str, TopologySetting] = field(
        default_factory=dict, metadata=at_most(MAX_SETTINGS)
    )
    preset: str | None = None
    """The preset that its settings override."""

    def absence_of(self, member: Member) -> Absence:
        """Return the policy for one site."""
        default, own = self.absence, member.patience
        return Absence(
            on_unreachable=member.on_unreachable or default.on_unreachable,
            patience_seconds=default.patience_seconds if own is None else seconds_of(own),
        )

    def __post_init__(self) -> None:
        federation_name(self.name)
        _require(1 <= len(self.members) <= 10_000, "a federation needs at least one site")
        counts = Counter(member.name for member in self.members)
        twice = sorted(name for name, count in counts.items() if count > 1)
        _require(not twice, f"two sites have the same name: {', '.join(twice)[:100]}")
