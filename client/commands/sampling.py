"""Options that every command which generates has."""

from typing import Annotated

import typer

MAX_TOKENS = 512
MODELS_OWN = "[default: the model's own, or {}]"

MaxTokens = Annotated[int, typer.Option(help="Longest answer.", min=1)]
Temperature = Annotated[
    float | None, typer.Option(help=f"0 is greedy. {MODELS_OWN.format(0.7)}", min=0)
]
Seed = Annotated[
    int | None, typer.Option(help="Makes the answer repeatable. [default: a random one]", min=0)
]
