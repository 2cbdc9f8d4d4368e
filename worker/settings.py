"""Settings of one worker: one model, its limits, where it comes from."""

from typing import Annotated

import msgspec

ModelName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as the ``[models.NAME]`` table of ``cluster.toml`` describes it.

    Attributes:
        path: a model folder of MLX or Hugging Face, or a GGUF file of the llama family.
        max_rows: requests that share a step at most; more wait inside the worker.
        context_tokens: caps the model's own context; a prompt and its answer take two at least.
        prefill_chunk_tokens: prompt tokens computed in one step at most.
        import_dir: folder of the model folders that are made from GGUF files.
    """

    path: str
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    context_tokens: Annotated[int, msgspec.Meta(ge=2)] | None = None
    prefill_chunk_tokens: Annotated[int, msgspec.Meta(ge=16, le=8192)] = 512
    import_dir: str = ""
