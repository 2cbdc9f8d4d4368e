"""The protos as one descriptor image; run it to renew tests/golden/protos_v1.binpb."""

from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "protos_v1.binpb"


def write_image(out: Path, *, source: bool = False) -> Path:
    """Write the image of every proto; ``source`` keeps comments and positions."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    files = sorted((ROOT / "protos").rglob("*.proto"))
    names = ["bramley/protos/" + file.relative_to(ROOT / "protos").as_posix() for file in files]
    flags = ["--include_imports", *(["--include_source_info"] if source else []), f"-o{out}"]
    includes = [f"-Ibramley/protos={ROOT / 'protos'}", f"-I{well_known}"]
    assert protoc.main(["protoc", *includes, *flags, *names]) == 0
    return out


if __name__ == "__main__":
    write_image(GOLDEN)
