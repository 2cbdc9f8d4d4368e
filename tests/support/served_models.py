"""Writes the models of support/served.py: ``python served_models.py FOLDER``."""

import sys
from pathlib import Path

from support.byte_tokenizer import EOS
from support.scripted_model import Script, write_scripts
from support.segmentations import write_ambiguous
from support.served import ANSWERS, ENDLESS, ENDS, PRIMER, SAYS, ZOO
from support.tiny_models import save, save_tiny
from support.zoo.catalogue import CONFIGS, build


def main() -> None:
    """Write all of them."""
    folder = Path(sys.argv[1])
    save_tiny(folder / "tiny", "full", seed=5)
    save_tiny(folder / "sliding", "sliding", seed=5)
    save_tiny(folder / "hybrid", "hybrid", seed=5)
    for name in ZOO:
        save(folder / name, build(name), CONFIGS[name])
    save_tiny(folder / "words", "full", seed=5)
    write_ambiguous(folder / "words")
    save_tiny(folder / "primed", "full", seed=5)
    write_ambiguous(folder / "primed", primer=PRIMER)
    scripts = {byte.encode(): Script(text.encode(), EOS) for byte, text in SAYS.items()}
    scripts |= {byte.encode(): Script(b"hi", end) for byte, end in ENDS.items()}
    scripts |= {byte.encode(): Script(text.encode(), EOS) for byte, text in ANSWERS.items()}
    scripts[ENDLESS.encode()] = Script(b"abc ", None)
    write_scripts(folder / "script", scripts, config_eos=(256, 259), tokenizer_eos=257)


if __name__ == "__main__":
    main()
