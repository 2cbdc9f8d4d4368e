"""Records what lane every model has today: ``python -m support.zoo.record``, run in tests/.

Why a lane is not better is written into the file by hand, and kept.
"""

import json

from support.blas import BLAS
from support.zoo.catalogue import CONFIGS, UNBUILT, build
from support.zoo.lanes import FILE, Record, lane_of, layers_of, recorded


def record() -> None:
    """Write the file anew."""
    assert BLAS, "loaded before mlx"
    before = recorded() if FILE.exists() else {}
    records: dict[str, Record] = {
        name: {"lane": "not tried", "layers": "", "why": why} for name, why in UNBUILT.items()
    }
    for name in CONFIGS:
        model = build(name)
        why = before[name]["why"] if name in before else ""
        records[name] = {"lane": lane_of(model).value, "layers": layers_of(model), "why": why}
    ordered = {name: records[name] for name in sorted(records, key=str.lower)}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    record()
