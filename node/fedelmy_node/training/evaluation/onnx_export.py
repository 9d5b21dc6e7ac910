"""Export a result as ONNX: one file, checked against the original on a batch of random images."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import ConfigError, TrainingError
from fedelmy_node.domain.federation import InputFormat
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.store.durable_files import replacing
from fedelmy_node.training.batches import normalised
from fedelmy_node.training.evaluation.inference import load_result

_NEEDED: Final = ("onnx", "onnxscript", "onnxruntime")
_TOLERANCE: Final = 1e-4
"""Between the probabilities of torch and of onnxruntime, whose kernels round differently."""
_IMAGES: Final = 4


class _Predictor(nn.Module):
    """From images with values from 0 to 1 to the probability of every class."""

    def __init__(self, module: nn.Module, wanted: InputFormat) -> None:
        super().__init__()
        self.module = module
        self._wanted = wanted

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.module(normalised(images, self._wanted))
        return scores.softmax(dim=1)


def export_onnx(found: ResultModel, out: Path) -> None:
    """Write the result of a run as one ONNX file, from `images` to `probabilities`."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        message = f"ONNX needs {', '.join(missing)}, which is not installed"
        hint = "Run `pip install 'fedelmy[onnx]'`."
        raise ConfigError("E-CONFIG-EXTENSION", message, hint=hint)
    trained = load_result(found)
    wanted = trained.task.input
    predictor = _Predictor(trained.module, wanted).eval()
    shape = (_IMAGES, wanted.channels, wanted.height, wanted.width)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    try:
        program = _exported(predictor, images)
    except Exception as error:  # the exporter raises whatever it meets in the model's code
        message = "torch cannot export this model as ONNX"
        raise TrainingError("E-TRAINING-MODEL", message, private=str(error)) from error
    model = program.model_proto
    about = {"classes": trained.task.classes, "run": found.run, "bundle_sha256": found.sha256}
    entry = model.metadata_props.add()
    entry.key, entry.value = "fedelmy", canonical_json(about).decode()
    data = model.SerializeToString()
    _compare(data, predictor, images)
    with replacing(out, mode=0o644) as partial:
        partial.write_bytes(data)


def _exported(predictor: nn.Module, images: Tensor) -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # about the exporter's own future
        return torch.onnx.export(
            predictor,
            (images,),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            dynamo=True,
            verbose=False,
        )


def _compare(data: bytes, predictor: nn.Module, images: Tensor) -> None:
    """Refuse a file that predicts otherwise than the model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for batch in (images, images[:1]):
        (found,) = session.run(None, {"images": batch.numpy()})
        with torch.inference_mode():
            wanted = predictor(batch)
        apart = float((torch.from_numpy(found) - wanted).abs().max())
        if not apart <= _TOLERANCE:
            message = f"the ONNX file and the model predict differently: {apart:.2g} apart"
            raise TrainingError("E-TRAINING-MODEL", message)
