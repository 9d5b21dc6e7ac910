"""Files of features in the site's state directory, up to a limit; a damaged one is ignored."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.store.disk_budget import SPARE_BYTES
from fedelmy_node.store.durable_files import replacing
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.job import CacheSpec

logger = logging.getLogger(__name__)

_NAME: Final = "features"
_SHA256: Final = "sha256"


class FeatureCache:
    """Never needed for a result: what it does not have is computed again, with the same bits."""

    def __init__(self, spec: CacheSpec) -> None:
        self._directory, self._limit = spec.directory, spec.limit_bytes

    def read(self, key: str) -> Tensor | None:
        """The features of a key; None if they are missing or damaged."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                features: Tensor = file.get_tensor(_NAME)
                intact = (file.metadata() or {}).get(_SHA256) == _checksum(features)
            os.utime(path)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            logger.warning("a features file cannot be read: %s", type(error).__name__)
            return None
        if not intact:
            logger.warning("a features file is damaged; the features are computed again")
            return None
        return features.clone()

    def write(self, key: str, features: Tensor) -> None:
        """Keep features, and remove the least recently used ones if they exceed the limit."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._make_room(features.nbytes):
                with replacing(self._path(key)) as partial:
                    save_file({_NAME: features}, partial, metadata={_SHA256: _checksum(features)})
        except (OSError, StoreError, SafetensorError) as error:
            logger.warning("features cannot be kept: %s", type(error).__name__)

    def _make_room(self, size: int) -> bool:
        """Whether a file of this size fits, after removing others."""
        if size > self._limit or size + SPARE_BYTES > Layout(self._directory).free_bytes():
            return False
        files = [(path.stat(), path) for path in self._directory.glob("*.safetensors")]
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda entry: entry[0].st_mtime_ns):
            if total + size <= self._limit:
                break
            path.unlink(missing_ok=True)
            total -= stat.st_size
        return True

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.safetensors"


def _checksum(features: Tensor) -> str:
    return hashlib.sha256(features.contiguous().numpy().data).hexdigest()
