"""Sites whose folders hold different classes: labels go by name, so both teach one model the same
numbers.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

from tests.e2e.support.testbed import run

TOML = """
[federation]
name = "folders"

[[sites]]
name = "north"
address = "127.0.0.1:1"
data = "imagefolder:north"

[[sites]]
name = "south"
address = "127.0.0.1:2"
data = "imagefolder:south"

[task]
classes = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
input = { height = 8, width = 8, channels = 1 }

[model]
name = "mlp"

[training]
epochs = 8
learning_rate = 3e-3
batch_size = 32
threads = 1

[strategy]
name = "fedelmy"
pool_size = 2
warmup_epochs = 4
"""
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def write_folder(root: Path, classes: range) -> None:
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        if label in classes:
            folder = root / NAMES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15.9375).round().astype("uint8")).save(
                folder / f"{number:04d}.png"
            )


def test_two_sites_with_different_folders_train_one_model(tmp_path: Path) -> None:
    # By folder order "eight" would be 0 at north and "five" 0 at south; by name they are 8 and 5 at
    # both.
    write_folder(tmp_path / "north", range(9))
    write_folder(tmp_path / "south", range(2, 10))
    (tmp_path / "federation.toml").write_text(TOML)
    result = run("fedelmy_launcher", "simulate", "--json", cwd=tmp_path).ok().json
    assert [site["accuracy"] > 0.8 for site in result["sites"]] == [True, True], result
    assert result["accuracy"] > 0.85
