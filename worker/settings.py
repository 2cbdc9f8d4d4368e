"""Settings of one worker: one model, its limits, where it comes from."""

from typing import Annotated

import msgspec

ModelName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
# The second worker of a model is NAME@2.
WorkerName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(@[0-9]+)?$")]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as the ``[models.NAME]`` table of ``cluster.toml`` describes it.

    Attributes:
        path: a model folder of MLX or Hugging Face, or a GGUF file of the llama family.
        max_rows: requests that share a step at most; more wait inside the worker.
        context_tokens: caps the model's own context; a prompt and its answer take two at least.
        prefill_chunk_tokens: prompt tokens computed in one forward at most; time bounds it too.
        state_bytes: memory for the state of all rows, parked ones included, and for a chunk's
            attention (an eighth); unset, as much as there is. What does not fit waits; what
            does not fit alone is refused.
        memory_bytes: what one worker takes in all; 0 goes by its files, then by what was
            measured. Where state_bytes is unset, the weights leave the rest of it to rows.
        parked_bytes: memory for rows whose request has ended, kept for a next turn; 0 keeps none.
        stall_timeout_s: what one step may take; then the worker ends, and is started anew.
        import_dir: folder of the model folders that are made from GGUF files.
    """

    path: str
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    context_tokens: Annotated[int, msgspec.Meta(ge=2)] | None = None
    prefill_chunk_tokens: Annotated[int, msgspec.Meta(ge=1, le=8192)] = 2048
    state_bytes: Positive | None = None
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    parked_bytes: Annotated[int, msgspec.Meta(ge=0)] = 1 << 30
    stall_timeout_s: Annotated[float, msgspec.Meta(ge=1.0)] = 120.0
    import_dir: str = ""

    def beside(self, weights: int) -> int | None:
        """Bytes that rows and their steps may take beside the weights; None without a limit."""
        if self.state_bytes is None and self.memory_bytes:
            return max(self.memory_bytes - weights, 1)
        return self.state_bytes
