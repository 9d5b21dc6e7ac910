"""Generate the Python code of the wire contract beside the .proto files.

python proto/generate.py            write it
python proto/generate.py --check    fail if what is there differs from what would be written
"""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent
PROTOS = sorted(ROOT.glob("fedelmy_proto/v1/*.proto"))
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(out: Path) -> None:
    """Run protoc with its Python, stub and type plug-ins into `out`."""
    arguments = [
        "protoc",
        f"--proto_path={ROOT}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_grpc_out=quiet:{out}",
        *(str(path) for path in PROTOS),
    ]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed")


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for pattern in GENERATED
        for path in root.rglob(pattern)
    }


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        with tempfile.TemporaryDirectory() as scratch:
            generate(Path(scratch))
            wanted, found = contents(Path(scratch)), contents(ROOT)
        stale = sorted(
            name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
        )
        if stale:
            sys.exit(f"out of date, run `make proto`: {', '.join(stale)}")
    else:
        generate(ROOT)


if __name__ == "__main__":
    main()
