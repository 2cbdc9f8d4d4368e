"""Build hook: generate bramley.protos from protos/, and lay out editable installs.

A wheel gets the generated modules through ``force_include``.  An editable
install gets ``build/dev/bramley``, where each package is a symbolic link to its
top-level folder, so that Python and type checkers both see one ``bramley``.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("common", "router", "worker", "cachestore", "client", "deploy", "bench")


def generate(root: Path, out: Path) -> None:
    """Write ``out/bramley/protos`` afresh from ``root/protos``.

    Raises:
        RuntimeError: protoc refused a file; it has printed why.
    """
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"  # google/protobuf/*.proto
    target = out / "bramley" / "protos"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    sources = sorted((root / "protos").rglob("*.proto"))
    names = ["bramley/protos/" + p.relative_to(root / "protos").as_posix() for p in sources]
    flags = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    includes = [f"-Ibramley/protos={root / 'protos'}", f"-I{well_known}"]
    if protoc.main(["protoc", *includes, *flags, *names]):
        raise RuntimeError("protoc failed")
    for source in sources:
        shutil.copy(source, target / source.relative_to(root / "protos"))
    for folder in {target, *(p.parent for p in target.rglob("*.py"))}:
        (folder / "__init__.py").touch()
    (target / "py.typed").touch()


class ProtoHook(BuildHookInterface):
    """See the module's docstring."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the wheel is assembled; ``version`` is 'standard' or 'editable'."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        out = root / "build" / ("dev" if version == "editable" else "gen")
        generate(root, out)
        if version == "editable":
            for name in PACKAGES:
                link = out / "bramley" / name
                if not link.is_symlink():
                    link.symlink_to(os.path.relpath(root / name, link.parent))
        else:
            build_data["force_include"][str(out / "bramley" / "protos")] = "bramley/protos"


if __name__ == "__main__":  # `make protos`
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # plugins
    here = Path(__file__).parent
    generate(here, here / "build" / "dev")
