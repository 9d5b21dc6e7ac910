"""Which tensors of a model are trained. The others are frozen: equal at all sites, never sent.

A part whose tensors are all frozen stays in evaluation mode, with its dropout: BatchNorm uses and
keeps the statistics from the file. Dropout outside such parts is active if the smallest part with
tensors around it is trained as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final, cast

from torch import nn

from fedelmy_node.config.registry import TIMM
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import ModelSpec, Task

_SHOWN: Final = 12


def frozen_names(module: nn.Module, spec: ModelSpec, task: Task) -> frozenset[str]:
    """The names in the state dict that are frozen."""
    if spec.train == "all":
        return frozenset()
    names = frozenset(module.state_dict())
    if isinstance(spec.train, str):
        head = head_names(module, spec, task)
        if not head:
            hint = f"List the patterns of its tensors instead. {_parts(module)}"
            message = f"model {spec.name!r} has no layer that is recognised as its head"
            raise ConfigError("E-CONFIG-TRAIN", message, hint=hint)
        return names - head
    return names - _matching(module, spec.train)


def head_names(module: nn.Module, spec: ModelSpec, task: Task) -> frozenset[str]:
    """The names of the classification head: the last layer with one output per class, if any."""
    heads = tuple(f"{path}." for path in _head_paths(module, spec.name, len(task.classes)))
    return frozenset(name for name in module.state_dict() if heads and name.startswith(heads))


def head_path(module: nn.Module, spec: ModelSpec, task: Task) -> str:
    """The path of the classification head; empty if there is none, or more than one."""
    paths = [*_head_paths(module, spec.name, len(task.classes))]
    return paths[0] if len(paths) == 1 else ""


def freeze(module: nn.Module, frozen: Collection[str]) -> None:
    """Exclude the frozen parameters from gradients, and keep frozen parts in evaluation mode."""
    if frozen:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(name not in frozen)
        _hold(module, "", tuple(module.state_dict()), frozen, whole=False)


def _hold(
    part: nn.Module, prefix: str, names: tuple[str, ...], frozen: Collection[str], *, whole: bool
) -> None:
    """`whole`: the smallest part with tensors around this one is trained as a whole."""
    own = [name for name in names if name.startswith(prefix)]
    trained = [name not in frozen for name in own]
    if (own and not any(trained)) or not (own or whole):
        # `train` is called on the whole model in many places, and calls itself on every part.
        part.eval()
        part.train = lambda mode=True: part  # type: ignore[method-assign]
        return
    for name, child in part.named_children():
        inside = all(trained) if own else whole
        _hold(child, f"{prefix}{name}.", tuple(own), frozen, whole=inside)


def _head_paths(module: nn.Module, name: str, classes: int) -> Iterator[str]:
    if name.startswith(TIMM):
        found: Any = cast(Any, module).get_classifier()
        heads = found if isinstance(found, tuple) else (found,)
    else:
        outputs = ((part, _outputs(part)) for part in module.modules())
        heads = tuple(part for part, count in outputs if count == classes)[-1:]
    yield from (path for path, part in module.named_modules() if part in heads)


def _outputs(part: nn.Module) -> int:
    if isinstance(part, nn.Linear):
        return part.out_features
    return part.out_channels if isinstance(part, nn.Conv2d) else 0


def _matching(module: nn.Module, patterns: Collection[str]) -> frozenset[str]:
    """Matching parameters, and the buffers of their layers, such as BatchNorm's statistics."""
    parameters = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            message = f"train: the pattern {pattern!r} matches no parameter of the model"
            raise ConfigError("E-CONFIG-TRAIN", message, hint=_parts(module))
    found = {name for name in parameters if any(fnmatchcase(name, each) for each in patterns)}
    owners = {name.rpartition(".")[0] for name in found}
    bare = {name.rpartition(".")[0] for name in parameters}
    for name in module.state_dict():
        owner = name.rpartition(".")[0]
        matches = owner not in bare and any(fnmatchcase(name, each) for each in patterns)
        if matches or (owner in owners and name not in parameters):
            found.add(name)
    return frozenset(found)


def _parts(module: nn.Module) -> str:
    parts = [f"{name}.*" for name, part in module.named_children() if list(part.parameters())]
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return f"Parts of this model: {', '.join(parts[:_SHOWN])}{more}."
