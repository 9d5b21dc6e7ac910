"""Any classifier of timm, by its name there, with random weights. timm is an optional package."""

from __future__ import annotations

import difflib
import importlib
import os
from typing import Any

from torch import nn

from fedelmy_node.config.registry import TIMM
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Task


def classifier(name: str, task: Task) -> nn.Module:
    """timm's model with one output per class and a first layer for the task's channels."""
    timm = _timm()
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"Did you mean '{TIMM}{close[0]}'?" if close else None
        raise ConfigError("E-CONFIG-MODEL", f"timm has no classifier {name!r}", hint=hint)
    options = {"num_classes": len(task.classes), "in_chans": task.input.channels}
    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


def _timm() -> Any:
    # Nothing is ever downloaded; without this, a machine without internet waits for a minute.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        hint = "Install it at this site: pip install 'fedelmy[timm]'."
        message = "models timm:NAME need the package timm, which is not installed"
        raise ConfigError("E-CONFIG-EXTENSION", message, hint=hint) from error
